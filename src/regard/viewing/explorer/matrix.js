// The alignment matrix: an HTML table, or, if it is large, a canvas with zoom.
const CELLS = 3000;
const WIDE = 80;

function matrixView(panel, table, state) {
  const many = table.rows.length * table.columns.length > CELLS || table.columns.length > 1000;
  if (table.site.form === "long" || many) mapView(panel, table, state);
  else tableView(panel, table);
}

function tableView(panel, table) {
  const letters = table.columns.reduce((sum, name) => sum + Math.max(Math.min(name.text.length, 24), 5), 0);
  const heads = table.columns.map((name) =>
    element("th", { scope: "col", class: name.special && "special" }, element("bdi", { title: name.text }, truncated(name.text))),
  );
  const rows = table.rows.map((name, row) => {
    const head = element("th", { scope: "row", class: name.special && "special" }, element("bdi", { title: name.text }, truncated(name.text)));
    const cells = table.columns.map((_, column) => {
      const weight = weightAt(table, row, column);
      const number = weight < 0.005 ? "" : formatNumber(weight);
      return element("td", { class: depth(weight, table.most), role: "gridcell" }, number);
    });
    return { head, cells };
  });
  const grid = element(
    "table",
    { class: letters > WIDE ? "tall" : "", role: "grid", "data-roving": true, "aria-label": "Attention of each row to each column" },
    element("thead", {}, element("tr", {}, element("td"), ...heads)),
    element("tbody", {}, ...rows.map(({ head, cells }) => element("tr", {}, head, ...cells))),
  );
  panel.append(element("div", { class: "scroll" }, grid), legend(table.most), asText(table));
  const cells = rows.flatMap((row) => row.cells);
  const show = (place) => {
    for (const old of grid.querySelectorAll(".on")) old.classList.remove("on");
    if (place < 0) return;
    const [row, column] = [Math.floor(place / table.columns.length), place % table.columns.length];
    rows[row].head.classList.add("on");
    heads[column].classList.add("on");
    cells[place].classList.add("on");
    describeCell(table, row, column);
  };
  roving(cells, { across: table.columns.length, on: show });
  const places = new Map(cells.map((cell, place) => [cell, place]));
  const headed = new Map([...rows.map((row, place) => [row.head, ["row", place]]), ...heads.map((head, place) => [head, ["column", place]])]);
  grid.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("td, th");
    if (places.has(cell)) show(places.get(cell));
    const [kind, place] = headed.get(cell) || [];
    if (kind === "row") describeRow(table, place);
    if (kind === "column") describeColumn(table, place);
  });
  grid.addEventListener("pointerleave", () => show(places.has(document.activeElement) ? places.get(document.activeElement) : -1));
}

function legend(most, rooted = false) {
  const steps = Array.from({ length: 8 }, (_, step) => element("i", { level: ((step + 1) / 8).toFixed(3) }));
  const note = rooted ? "; the shade is the square root of the weight" : "";
  return element("p", { class: "legend", "aria-hidden": "true" }, "0", element("span", {}, ...steps), `${formatWeight(most)}${note}`);
}
