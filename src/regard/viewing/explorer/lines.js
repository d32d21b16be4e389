// Two columns of words, keys on the left and queries on the right, joined by lines; darker lines have larger weights.
const LINES = 2000;
const WORDS = 600;
const HIGH = 28;

function linesView(panel, table) {
  const rows = table.rows.slice(0, WORDS);
  const columns = table.columns.slice(0, WORDS);
  const height = HIGH * Math.max(rows.length, columns.length, 1);
  const svg = svgElement("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true", height });
  const lists = [wordList(rows, "Queries"), wordList(columns, "Keys")];
  panel.append(element("div", { class: "joined" }, lists[1].list, svg, lists[0].list), asText(table));
  if (table.rows.length > WORDS || table.columns.length > WORDS) {
    panel.append(element("p", { class: "quiet" }, `Only the first ${WORDS} words of each side are shown.`));
  }
  const shift = [rows, columns].map((names) => (height - HIGH * names.length) / 2);
  lists.forEach(({ list }, side) => list.style.setProperty("padding-top", `${shift[side]}px`));
  const links = [];
  rows.forEach((_, row) => columns.forEach((__, column) => links.push({ row, column, weight: weightAt(table, row, column) })));
  const kept = ranked(links, LINES).filter((link) => link.weight > table.most / 250);
  for (const link of kept) {
    const [from, to] = [shift[0] + (link.row + 0.5) * HIGH, shift[1] + (link.column + 0.5) * HIGH];
    link.path = svgElement("path", { d: `M0 ${to}C45 ${to} 55 ${from} 100 ${from}`, level: (link.weight / table.most).toFixed(3) });
    svg.append(link.path);
  }
  const show = (side, place) => {
    for (const link of kept) {
      const off = side >= 0 && (side === 0 ? link.row : link.column) !== place;
      link.path.classList.toggle("off", off);
    }
    lists.forEach(({ words }, other) =>
      words.forEach((word, number) => {
        const mine = other === side && number === place;
        const weight = other === side || side < 0 ? 0 : side === 0 ? weightAt(table, place, number) : weightAt(table, number, place);
        word.className = mine ? "word chosen" : `word ${depth(weight, table.most) || ""}`;
      }),
    );
    if (side === 0) describeRow(table, place);
    if (side === 1) describeColumn(table, place);
  };
  lists.forEach(({ list, words }, side) => {
    roving(words, { on: (place) => show(side, place) });
    list.addEventListener("pointerover", (event) => {
      const place = words.indexOf(event.target.closest(".word"));
      if (place >= 0) show(side, place);
    });
    for (const name of ["pointerleave", "focusout"]) {
      list.addEventListener(name, () => show(-1, -1));
    }
  });
}

function wordList(names, label) {
  const words = names.map((name) => element("button", { type: "button", class: "word", dir: "auto", title: name.text }, truncated(name.text)));
  const list = element("ol", { class: label === "Queries" ? "to" : "from", "aria-label": label, "data-roving": true }, ...words.map((word, place) => element("li", { class: names[place].special && "special" }, word)));
  return { list, words };
}
