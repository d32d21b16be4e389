// Thumbnails of all layers and heads; selecting one enlarges it.
const SMALL = 64;
const KINDS = { cross: "Cross-attention (target to source)", encoder: "Encoder self-attention", decoder: "Decoder self-attention", long: "Long sequences" };

function headsView(panel, table, state, open) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      seen.unobserve(entry.target);
      drawSmall(entry.target);
    }
  });
  for (const kind of kindsHere()) {
    const sites = page.sites.filter((site) => kindOf(site) === kind && !site.name.includes("*"));
    if (!sites.length) continue;
    const rows = sites.map((site) => {
      const heads = Array.from({ length: site.heads }, (_, head) => {
        const number = page.sites.indexOf(site);
        const canvas = element("canvas", { width: SMALL, height: SMALL, "aria-hidden": "true" });
        const current = state.site === number && (state.head === head || site.heads === 1);
        const label = site.heads > 1 ? `${site.name}, head ${head}` : site.name;
        const button = element("button", { type: "button", class: "small", "aria-label": label, title: label, "aria-pressed": String(current), "data-site": number, "data-head": head }, canvas);
        button.addEventListener("click", () => open({ site: number, head: site.heads === 1 ? "mean" : head }));
        for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => describe(label));
        seen.observe(button);
        return button;
      });
      return element("div", { class: "layer" }, element("h4", {}, site.name), element("div", { class: "row", "data-roving": true }, ...heads));
    });
    panel.append(element("section", { "aria-label": KINDS[kind] || kind }, element("h3", {}, KINDS[kind] || kind), ...rows));
  }
  for (const row of panel.querySelectorAll(".row")) roving([...row.children]);
}

function kindOf(site) {
  return site.kind;
}

function kindsHere() {
  const known = Object.keys(KINDS);
  const all = [...new Set(page.sites.map(kindOf))];
  return all.sort((a, b) => (known.indexOf(a) + 99) % 99 - ((known.indexOf(b) + 99) % 99));
}

function drawSmall(button) {
  const site = page.sites[Number(button.dataset.site)];
  const plane = planeNumber(site, Number(button.dataset.head), "weights");
  const [rows, columns] = sizesOf(site);
  const source = { rows, columns, most: site.most[plane], long: site.form === "long" ? openLong(site, plane) : null };
  const view = { row: 0, column: 0, height: rows, width: columns };
  const grid = source.long ? blocksIn(source, view) : smallGrid(site, plane, rows, columns);
  const context = button.firstChild.getContext("2d");
  context.clearRect(0, 0, SMALL, SMALL);
  context.imageSmoothingEnabled = Math.max(grid.down, grid.across) > SMALL;
  context.drawImage(imageOf(grid), 0, 0, SMALL, SMALL);
}

function smallGrid(site, plane, rows, columns) {
  const [binRows, binColumns] = [Math.ceil(rows / SMALL), Math.ceil(columns / SMALL)];
  const [down, across] = [Math.ceil(rows / binRows), Math.ceil(columns / binColumns)];
  const cells = new Float32Array(down * across);
  eachWeight(site, plane, (row, column, weight) => {
    const bin = Math.floor(row / binRows) * across + Math.floor(column / binColumns);
    if (weight > cells[bin]) cells[bin] = weight;
  });
  return { down, across, cells, most: site.most[plane] };
}
