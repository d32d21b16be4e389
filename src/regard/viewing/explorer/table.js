// The table of words and weights for the current controls, used by every view.

function namesOf(side) {
  return side.pieces.map((text, place) => ({ text, special: side.special[side.groups[place]] === 1 }));
}

function wordsOf(side) {
  return side.words.map((text, place) => ({ text, special: side.special[place] === 1 }));
}

function largestIn(cells) {
  let most = 0;
  for (const cell of cells) if (cell > most) most = cell;
  return most || 1;
}

function tableOf(choice) {
  const site = page.sites[choice.site];
  if (site.form === "long") return windowOf(site, choice);
  const [rowSide, columnSide] = [page.sides[site.rows], page.sides[site.columns]];
  let table = {
    rows: namesOf(rowSide),
    columns: namesOf(columnSide),
    cells: denseOf(site, planeNumber(site, choice.head, choice.measure)),
  };
  if (choice.measure === "values" && site.values && (choice.head !== "mean" || site.heads === 1)) {
    table = timesValues(table, valuesOf(site, choice.head === "mean" ? 0 : choice.head));
  }
  if (choice.units === "words") table = joinedTable(table, rowSide, columnSide);
  if (choice.specials !== "shown") table = withoutSpecials(table, choice.specials === "renormalised");
  return { ...table, site, firstRow: 0, firstColumn: 0, most: largestIn(table.cells) };
}

function timesValues(table, values) {
  const width = table.columns.length;
  return { ...table, cells: table.cells.map((cell, place) => cell * values[place % width]) };
}

// Join subwords to words: sum over the subwords of a key, mean over those of a query.
function joinedTable(table, rowSide, columnSide) {
  const [rows, columns] = [wordsOf(rowSide), wordsOf(columnSide)];
  const cells = new Float32Array(rows.length * columns.length);
  const lengths = new Float32Array(rows.length);
  rowSide.groups.forEach((row, place) => {
    lengths[row]++;
    const start = place * columnSide.groups.length;
    columnSide.groups.forEach((column, other) => {
      cells[row * columns.length + column] += table.cells[start + other];
    });
  });
  for (let place = 0; place < cells.length; place++) cells[place] /= lengths[Math.floor(place / columns.length)];
  return { rows, columns, cells };
}

function withoutSpecials(table, renormalised) {
  const places = (names) => names.map((name, place) => (name.special ? -1 : place)).filter((place) => place >= 0);
  const [rows, columns] = [places(table.rows), places(table.columns)];
  const width = table.columns.length;
  const cells = new Float32Array(rows.length * columns.length);
  rows.forEach((row, place) => {
    const line = table.cells.subarray(row * width, (row + 1) * width);
    const taken = columns.map((column) => line[column]);
    const sum = taken.reduce((a, b) => a + b, 0);
    const scale = renormalised ? (sum ? line.reduce((a, b) => a + b, 0) / sum : 0) : 1;
    taken.forEach((weight, column) => {
      cells[place * columns.length + column] = weight * scale;
    });
  });
  return { rows: rows.map((row) => table.rows[row]), columns: columns.map((column) => table.columns[column]), cells };
}

function weightAt(table, row, column) {
  return table.cells[row * table.columns.length + column];
}

// Return the positions and weights of one row or column, largest first, without zeros.
function rankedRow(table, row, count) {
  const entries = table.columns.map((name, place) => ({ name, place, weight: weightAt(table, row, place) }));
  return ranked(entries, count);
}

function rankedColumn(table, column, count) {
  const entries = table.rows.map((name, place) => ({ name, place, weight: weightAt(table, place, column) }));
  return ranked(entries, count);
}

function ranked(entries, count) {
  return entries
    .filter((each) => each.weight > 0)
    .sort((a, b) => b.weight - a.weight)
    .slice(0, count);
}
