// Draw large matrices on a canvas: each pixel shows the largest weight that falls on it.

// Max-pool the visible weights to a grid of at most `tall` x `wide` bins. The result has the first row and column,
// the numbers of rows and columns of a bin, and the cells: the largest weight of each bin.
function gridOf(source, view, tall, wide) {
  if (source.long && source.long.blockRows * tall < view.height * 2 && source.long.blockColumns * wide < view.width * 2) {
    return blocksIn(source, view);
  }
  const binRows = Math.max(1, Math.ceil(view.height / tall));
  const binColumns = Math.max(1, Math.ceil(view.width / wide));
  const grid = {
    row: Math.floor(view.row / binRows) * binRows,
    column: Math.floor(view.column / binColumns) * binColumns,
    binRows,
    binColumns,
  };
  grid.down = Math.ceil((Math.min(view.row + view.height, source.rows) - grid.row) / binRows);
  grid.across = Math.ceil((Math.min(view.column + view.width, source.columns) - grid.column) / binColumns);
  grid.cells = new Float32Array(grid.down * grid.across);
  const place = (row, column, weight) => {
    const bin = Math.floor((row - grid.row) / binRows) * grid.across + Math.floor((column - grid.column) / binColumns);
    if (weight > grid.cells[bin]) grid.cells[bin] = weight;
  };
  const last = { row: grid.row + grid.down * binRows, column: grid.column + grid.across * binColumns };
  if (source.long) {
    eachLargest(source.long, grid.row, last.row, (row, key, weight) => {
      if (key >= grid.column && key < last.column) place(row, key, weight);
    });
    return { ...grid, most: source.most };
  }
  for (let row = grid.row; row < Math.min(last.row, source.rows); row++) {
    for (let column = grid.column; column < Math.min(last.column, source.columns); column++) {
      place(row, column, source.cells[row * source.columns + column]);
    }
  }
  return { ...grid, most: source.most };
}

// Return the stored block map of a long site: the maximum of each block, or the mean.
function blocksIn(source, view) {
  const { long } = source;
  const numbers = source.mean ? long.means : long.maxima;
  const top = Math.floor(view.row / long.blockRows);
  const left = Math.floor(view.column / long.blockColumns);
  const down = Math.min(long.down, Math.ceil((view.row + view.height) / long.blockRows)) - top;
  const across = Math.min(long.across, Math.ceil((view.column + view.width) / long.blockColumns)) - left;
  const cells = new Float32Array(down * across);
  for (let row = 0; row < down; row++) {
    const start = (top + row) * long.across + left;
    cells.set(numbers.subarray(start, start + across), row * across);
  }
  return {
    row: top * long.blockRows,
    column: left * long.blockColumns,
    binRows: long.blockRows,
    binColumns: long.blockColumns,
    down,
    across,
    cells,
    most: source.mean ? long.mostMean : source.most,
    blocks: true,
  };
}

// Draw a grid as an image: the opacity of the accent colour is the square root of the weight, so that small weights are visible.
function imageOf(grid) {
  const image = new ImageData(Math.max(grid.across, 1), Math.max(grid.down, 1));
  const [red, green, blue] = accent();
  grid.cells.forEach((weight, place) => {
    image.data[4 * place] = red;
    image.data[4 * place + 1] = green;
    image.data[4 * place + 2] = blue;
    image.data[4 * place + 3] = Math.round(255 * Math.sqrt(Math.min((weight || 0) / grid.most, 1)));
  });
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Set the size of a canvas in CSS pixels; on high-resolution screens it has more device pixels.
function sized(canvas, width, height) {
  const fine = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * fine);
  canvas.height = Math.round(height * fine);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(fine, 0, 0, fine, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
