"use strict";
// The data of the page: base64 text that is decoded on first use. __init__.py documents the format.
const page = JSON.parse(document.getElementById("data").textContent);
const blocks = new Map();
const planes = new Map();
const PLANES_KEPT = 16;

function blockOf(site) {
  const number = page.sites.indexOf(site);
  if (!blocks.has(number)) {
    const text = atob(document.getElementById(`block-${number}`).textContent);
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
    blocks.set(number, bytes);
  }
  return blocks.get(number);
}

function sizesOf(site) {
  return [page.sides[site.rows].pieces.length, page.sides[site.columns].pieces.length];
}

// Return a lookup table from quantised integers to weights (square-root scale).
function scaleOf(bits, most) {
  const top = 2 ** bits - 2;
  const scale = new Float32Array(top + 2);
  for (let step = 0; step <= top; step++) scale[step] = most * (step / top) ** 2;
  scale[top + 1] = NaN;
  return scale;
}

// Return the number of the plane (stored matrix) of a head, or of the mean over heads; see _planes in __init__.py.
function planeNumber(site, head, measure) {
  if (site.form === "long") return site.mean ? (head === "mean" ? 0 : head + 1) : head === "mean" ? 0 : head;
  if (head !== "mean") return head;
  if (site.heads === 1) return 0;
  return measure === "values" && site.values ? site.heads + 1 : site.heads;
}

function planesIn(site) {
  return site.most.length;
}

// Call take(row, column, weight) for every stored weight of a plane.
function eachWeight(site, plane, take) {
  const [rows, columns] = sizesOf(site);
  const bytes = blockOf(site);
  const scale = scaleOf(site.bits, site.most[plane]);
  if (site.form === "whole") {
    const size = rows * columns;
    const width = site.bits / 8;
    const start = plane * size * width;
    const whole = width === 2 ? new Uint16Array(bytes.slice(start, start + 2 * size).buffer) : bytes.subarray(start, start + size);
    for (let row = 0, place = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, place++) take(row, column, scale[whole[place]]);
    }
    return;
  }
  const { keys, weights } = largestOf(site, plane);
  const none = keys instanceof Uint16Array ? 0xffff : 0xffffffff;
  for (let row = 0, place = 0; row < rows; row++) {
    for (let rank = 0; rank < site.kept; rank++, place++) {
      if (keys[place] !== none) take(row, keys[place], scale[weights[place]]);
    }
  }
}

// Return the largest weights of each row of a plane: keys, and weights as quantised integers.
function largestOf(site, plane) {
  const bytes = blockOf(site);
  const size = sizesOf(site)[0] * site.kept;
  const width = site.wide ? 4 : 2;
  const copied = bytes.slice(plane * size * width, (plane + 1) * size * width).buffer;
  const after = planesIn(site) * size * width + plane * size;
  return {
    keys: site.wide ? new Uint32Array(copied) : new Uint16Array(copied),
    weights: bytes.subarray(after, after + size),
  };
}

// Return the value norms of one head, which are at the end of the block.
function valuesOf(site, head) {
  const columns = sizesOf(site)[1];
  const bytes = blockOf(site);
  const start = bytes.length - 4 * columns * (site.heads - head);
  return new Float32Array(bytes.slice(start, start + 4 * columns).buffer);
}

// Return one plane as a dense matrix. Long sites, which are too large, use longOf instead.
function denseOf(site, plane) {
  const key = `${page.sites.indexOf(site)} ${plane}`;
  if (!planes.has(key)) {
    const [rows, columns] = sizesOf(site);
    const cells = new Float32Array(rows * columns);
    eachWeight(site, plane, (row, column, weight) => {
      cells[row * columns + column] = weight;
    });
    if (planes.size >= PLANES_KEPT) planes.delete(planes.keys().next().value);
    planes.set(key, cells);
  }
  return planes.get(key);
}
