// A large matrix on a canvas: zoom with + and -, drag to move, select a cell with the pointer or the arrow keys.
const LEGIBLE = 13;
const HIGHEST = 480;
const MARGIN = 10;

function mapView(panel, table, state) {
  const long = table.site.form === "long" ? longOf(table.site, state.head) : null;
  const source = {
    long,
    rows: long ? long.rows : table.rows.length,
    columns: long ? long.columns : table.columns.length,
    cells: table.cells,
    most: long ? long.most : table.most,
    mean: state.pooling === "mean",
    rowNames: long ? page.sides[table.site.rows].pieces : table.rows.map((name) => name.text),
    columnNames: long ? page.sides[table.site.columns].pieces : table.columns.map((name) => name.text),
  };
  const map = { source, table, state, view: keptView(state, source) };
  map.canvas = element("canvas", {
    class: "map",
    tabindex: 0,
    role: "img",
    "aria-label": `Weights of ${formatCount(source.rows)} rows and ${formatCount(source.columns)} columns. Arrow keys select a cell, plus and minus zoom, 0 shows everything.`,
    "aria-describedby": "description",
  });
  const tools = element(
    "div",
    { class: "tools", role: "group", "aria-label": "Zoom" },
    tool("Zoom in", "+", () => zoom(map, 2)),
    tool("Zoom out", "−", () => zoom(map, 0.5)),
    tool("Show everything", "Whole", () => zoom(map, 0)),
    element("span", { class: "quiet", id: "place" }),
  );
  const chosen = element("div", { class: "chosen-row" });
  map.chosen = chosen;
  map.frame = element("div", { class: "frame" }, map.canvas, legend(1, true));
  panel.append(tools, element("div", { class: "mapped" }, map.frame, chosen), asText(table));
  listen(map);
  paint(map);
  hint("Point at a cell, or select it with the arrow keys; + and - zoom, dragging moves, 0 shows everything.");
  showSelectedRow(map);
}

function tool(label, text, act) {
  const button = element("button", { type: "button", "aria-label": label, title: label }, text);
  button.addEventListener("click", act);
  return button;
}

function keptView(state, source) {
  const fits = state.view && state.view.rows === source.rows && state.view.columns === source.columns;
  if (!fits) state.view = { row: 0, column: 0, height: source.rows, width: source.columns, rows: source.rows, columns: source.columns };
  state.cursor.row = Math.min(state.cursor.row, source.rows - 1);
  state.cursor.column = Math.min(state.cursor.column, source.columns - 1);
  return state.view;
}

// Zoom around the selected cell; a factor of 0 shows everything.
function zoom(map, factor, about = map.state.cursor) {
  const { view, source } = map;
  const least = Math.min(8, source.rows, source.columns);
  const height = factor ? Math.min(Math.max(view.height / factor, least), source.rows) : source.rows;
  const width = factor ? Math.min(Math.max(view.width / factor, least), source.columns) : source.columns;
  const seen = about.row >= view.row && about.row < view.row + view.height && about.column >= view.column && about.column < view.column + view.width;
  const down = seen ? (about.row - view.row) / view.height : 0.5;
  const across = seen ? (about.column - view.column) / view.width : 0.5;
  view.row += down * (view.height - height);
  view.column += across * (view.width - width);
  Object.assign(view, { height, width });
  keepInside(map);
  paint(map);
}

function keepInside({ view, source }) {
  view.row = Math.max(0, Math.min(view.row, source.rows - view.height));
  view.column = Math.max(0, Math.min(view.column, source.columns - view.width));
}

function paint(map) {
  const { view, source, state, canvas } = map;
  map.box = boxOf(map);
  const { box } = map;
  const context = sized(canvas, box.left + box.width + MARGIN, box.top + box.height + MARGIN);
  const [tall, wide] = [box.height / view.height, box.width / view.width];
  const grid = gridOf(source, view, Math.floor(box.height), Math.floor(box.width));
  map.grid = grid;
  context.save();
  context.beginPath();
  context.rect(box.left, box.top, box.width, box.height);
  context.clip();
  context.imageSmoothingEnabled = false;
  const [x, y] = [box.left + (grid.column - view.column) * wide, box.top + (grid.row - view.row) * tall];
  context.drawImage(imageOf(grid), x, y, grid.across * grid.binColumns * wide, grid.down * grid.binRows * tall);
  const ink = getComputedStyle(document.body);
  context.strokeStyle = ink.getPropertyValue("--ink");
  const at = [box.left + (state.cursor.column - view.column) * wide, box.top + (state.cursor.row - view.row) * tall];
  const [w, h] = [Math.max(wide, 5), Math.max(tall, 5)];
  context.strokeRect(at[0] + (wide - w) / 2, at[1] + (tall - h) / 2, w, h);
  context.restore();
  context.strokeStyle = ink.getPropertyValue("--rule");
  context.strokeRect(box.left - 0.5, box.top - 0.5, box.width, box.height);
  context.fillStyle = ink.getPropertyValue("--quiet");
  context.font = `12px ${ink.fontFamily}`;
  labels(context, map, "row", tall);
  labels(context, map, "column", wide);
  map.frame.lastChild.replaceWith(legend(grid.most, true));
  const span = (first, count) => `${formatCount(Math.floor(first) + 1)}–${formatCount(Math.ceil(first + count))}`;
  document.getElementById("place").textContent =
    `rows ${span(view.row, view.height)}, columns ${span(view.column, view.width)}` + (grid.blocks ? `, the ${source.mean ? "mean" : "largest"} of blocks of ${grid.binRows} × ${grid.binColumns}` : "");
}

// Return the area of the cells, square if there is room, with a margin for words or position numbers.
function boxOf({ view, frame }) {
  const room = Math.max(200, frame.clientWidth);
  const ratio = Math.min(Math.max(view.height / view.width, 0.25), 4);
  const high = Math.max(160, Math.min(HIGHEST, (room - 104 - MARGIN) * ratio));
  const words = high / view.height >= LEGIBLE;
  const left = words ? 104 : 52;
  const width = Math.min(room - left - MARGIN, Math.max(high / ratio, 200));
  return { left, top: width / view.width >= LEGIBLE ? 84 : 48, width, height: high };
}

// Draw words as labels if there is room, else position numbers.
function labels(context, { view, source, box }, kind, each) {
  const [first, count, names] = kind === "row" ? [view.row, view.height, source.rowNames] : [view.column, view.width, source.columnNames];
  const legible = each >= LEGIBLE;
  const step = legible ? 1 : 2 ** Math.ceil(Math.log2((kind === "row" ? 36 : 56) / each));
  context.textBaseline = "middle";
  context.textAlign = kind === "row" ? "end" : "start";
  context.direction = "ltr";
  for (let place = Math.ceil((first + 1) / step) * step - 1; place < Math.min(first + count, names.length); place += step) {
    const middle = (place - first + 0.5) * each;
    if (middle < 0) continue;
    const text = legible ? isolated(truncated(names[place], kind === "row" ? 13 : 11)) : formatCount(place + 1);
    context.save();
    if (kind === "row") context.translate(box.left - 8, box.top + middle);
    else context.translate(box.left + middle, box.top - 8);
    if (kind === "column") context.rotate(-Math.PI / 2);
    context.fillText(text, 0, 0, kind === "row" ? box.left - 12 : box.top - 12);
    context.restore();
  }
}

function listen(map) {
  const { canvas, view, state } = map;
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.offsetX, y: event.offsetY, row: view.row, column: view.column, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(map, event);
    if (!held) {
      if (cell) describeMapCell(map, cell.row, cell.column);
      return;
    }
    const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
    held.moved = held.moved || Math.hypot(dx, dy) > 4;
    if (!held.moved) return;
    view.column = held.column - (dx * view.width) / map.box.width;
    view.row = held.row - (dy * view.height) / map.box.height;
    keepInside(map);
    paint(map);
  });
  canvas.addEventListener("pointerup", (event) => {
    const cell = held && !held.moved ? cellAt(map, event) : null;
    held = null;
    if (cell) choose(map, cell);
  });
  canvas.addEventListener("pointercancel", () => {
    held = null;
  });
  canvas.addEventListener("dblclick", (event) => {
    const cell = cellAt(map, event);
    if (cell) zoom(map, 2, cell);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      zoom(map, event.deltaY < 0 ? 1.25 : 0.8, cellAt(map, event) || state.cursor);
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => mapKey(map, event));
}

function mapKey(map, event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const { cursor } = map.state;
  // An arrow key moves by one bin of the grid (one visible cell), so that every step is visible.
  const [down, across] = [map.grid.binRows, map.grid.binColumns];
  const moved = {
    ArrowDown: { ...cursor, row: cursor.row + down },
    ArrowUp: { ...cursor, row: cursor.row - down },
    ArrowRight: { ...cursor, column: cursor.column + across },
    ArrowLeft: { ...cursor, column: cursor.column - across },
    Home: { ...cursor, column: 0 },
    End: { ...cursor, column: map.source.columns - 1 },
    PageDown: { ...cursor, row: cursor.row + Math.ceil(map.view.height / 2) },
    PageUp: { ...cursor, row: cursor.row - Math.ceil(map.view.height / 2) },
  }[event.key];
  const factor = { "+": 2, "=": 2, "-": 0.5, 0: 0 }[event.key];
  if (moved === undefined && factor === undefined) return;
  event.preventDefault();
  if (factor !== undefined) zoom(map, factor);
  else choose(map, moved);
}

function choose(map, { row, column }) {
  const { cursor } = map.state;
  const { view, source } = map;
  cursor.row = Math.max(0, Math.min(row, source.rows - 1));
  cursor.column = Math.max(0, Math.min(column, source.columns - 1));
  if (cursor.row < view.row || cursor.row >= view.row + view.height) view.row = cursor.row - view.height / 2;
  if (cursor.column < view.column || cursor.column >= view.column + view.width) view.column = cursor.column - view.width / 2;
  keepInside(map);
  paint(map);
  describeMapCell(map, cursor.row, cursor.column);
  showSelectedRow(map);
}

function cellAt({ view, box }, event) {
  const row = Math.floor(view.row + ((event.offsetY - box.top) / box.height) * view.height);
  const column = Math.floor(view.column + ((event.offsetX - box.left) / box.width) * view.width);
  return event.offsetX < box.left || event.offsetY < box.top ? null : { row, column };
}

// Describe a cell; if a pixel covers several cells, describe their maximum or mean.
function describeMapCell(map, row, column) {
  const { source, grid, table } = map;
  if (grid.binRows * grid.binColumns > 1) {
    const top = grid.row + Math.floor((row - grid.row) / grid.binRows) * grid.binRows;
    const left = grid.column + Math.floor((column - grid.column) / grid.binColumns) * grid.binColumns;
    const block = Math.floor((row - grid.row) / grid.binRows) * grid.across + Math.floor((column - grid.column) / grid.binColumns);
    const names = `rows ${formatCount(top + 1)}–${formatCount(Math.min(top + grid.binRows, source.rows))}, columns ${formatCount(left + 1)}–${formatCount(Math.min(left + grid.binColumns, source.columns))}`;
    describe(`${names}: ${grid.blocks && source.mean ? "mean" : "largest"} ${formatWeight(grid.cells[block])}`);
    return;
  }
  const weight = source.long ? longWeight(source.long, row, column) : weightAt(table, row, column);
  const names = `${isolated(truncated(source.rowNames[row]))} (${formatCount(row + 1)}) attended to ${isolated(truncated(source.columnNames[column]))} (${formatCount(column + 1)})`;
  describe(`${names}: ${describeWeight(table, row, weight || 0)}`);
}

// Show the largest weights of the selected row as bars.
function showSelectedRow(map) {
  const { source, state, table } = map;
  const { row } = state.cursor;
  let entries = [];
  if (source.long) {
    eachLargest(source.long, row, row + 1, (_, place, weight) => entries.push({ name: { text: source.columnNames[place] }, place, weight }));
    entries = ranked(entries, 12);
  } else if (source.rows) entries = rankedRow(table, row, 12);
  const bars = entries.map((each) =>
    element(
      "li",
      {},
      element("bdi", {}, truncated(each.name.text)),
      element("span", { class: "quiet" }, formatCount(each.place + 1)),
      element("span", { class: "bar" }, element("i", { level: (each.weight / entries[0].weight).toFixed(4) })),
      element("span", { class: "number" }, formatWeight(each.weight)),
    ),
  );
  map.chosen.replaceChildren(
    element("h3", {}, element("bdi", {}, truncated(source.rowNames[row] || "")), element("span", { class: "quiet" }, ` row ${formatCount(row + 1)} attended most to`)),
    element("ol", {}, ...bars),
  );
}
