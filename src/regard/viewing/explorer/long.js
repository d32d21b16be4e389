// Sites of long sequences are stored as a block map and the largest weights of each row. The matrix view draws both;
// the other views draw a window of tokens around the selected cell.
const MAP = 256;
const WINDOW = 48;
const longSites = new Map();

function longOf(site, head) {
  const plane = planeNumber(site, head, "weights");
  const key = `${page.sites.indexOf(site)} ${plane}`;
  if (!longSites.has(key)) {
    if (longSites.size >= PLANES_KEPT) longSites.delete(longSites.keys().next().value);
    longSites.set(key, openLong(site, plane));
  }
  return longSites.get(key);
}

function openLong(site, plane) {
  const [rows, columns] = sizesOf(site);
  const [down, across] = site.map;
  const bytes = blockOf(site);
  const size = down * across;
  const start = planesIn(site) * rows * site.kept * ((site.wide ? 4 : 2) + 1);
  const read = (kind, most) => {
    const scale = scaleOf(8, most);
    const first = start + (kind * planesIn(site) + plane) * size;
    return Float32Array.from(bytes.subarray(first, first + size), (step) => scale[step]);
  };
  const scale = scaleOf(8, site.most[plane]);
  const { keys, weights } = largestOf(site, plane);
  return {
    rows,
    columns,
    down,
    across,
    blockRows: Math.max(Math.ceil(rows / MAP), 1),
    blockColumns: Math.max(Math.ceil(columns / MAP), 1),
    maxima: read(0, site.most[plane]),
    means: read(1, site.mostMean[plane]),
    most: site.most[plane],
    mostMean: site.mostMean[plane],
    kept: site.kept,
    none: site.wide ? 0xffffffff : 0xffff,
    keys,
    weight: (place) => scale[weights[place]],
  };
}

// Call take(row, key, weight) for the stored weights of rows `first` to `last`.
function eachLargest(long, first, last, take) {
  for (let row = Math.max(first, 0); row < Math.min(last, long.rows); row++) {
    for (let place = row * long.kept; place < (row + 1) * long.kept; place++) {
      if (long.keys[place] !== long.none) take(row, long.keys[place], long.weight(place));
    }
  }
}

// Return the weight of one cell; undefined if it is not among the largest of its row.
function longWeight(long, row, column) {
  for (let place = row * long.kept; place < (row + 1) * long.kept; place++) {
    if (long.keys[place] === column) return long.weight(place);
  }
  return undefined;
}

// Return a table of the tokens around the selected cell, from the largest weights of each row.
function windowOf(site, choice) {
  const long = longOf(site, choice.head);
  const begin = (place, size) => Math.max(0, Math.min(place - WINDOW / 2, size - WINDOW));
  const firstRow = begin(choice.cursor.row, long.rows);
  const firstColumn = begin(choice.cursor.column, long.columns);
  const windowed = (side, first) => namesOf({ ...side, pieces: side.pieces.slice(first, first + WINDOW) });
  const rows = windowed(page.sides[site.rows], firstRow);
  const columns = windowed(page.sides[site.columns], firstColumn);
  const cells = new Float32Array(rows.length * columns.length);
  eachLargest(long, firstRow, firstRow + rows.length, (row, key, weight) => {
    const column = key - firstColumn;
    if (column >= 0 && column < columns.length) cells[(row - firstRow) * columns.length + column] = weight;
  });
  return { rows, columns, cells, site, firstRow, firstColumn, most: largestIn(cells) };
}
