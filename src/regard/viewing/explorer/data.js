"use strict";
// The numbers of the page: text that is decoded when it is first asked for. packing.py says how they are kept.
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

// From a whole number on the scale of the square root to a weight, by a list of all answers.
function scaleOf(bits, most) {
  const top = 2 ** bits - 2;
  const scale = new Float32Array(top + 2);
  for (let step = 0; step <= top; step++) scale[step] = most * (step / top) ** 2;
  scale[top + 1] = NaN;
  return scale;
}

// Which plane of a site's block holds a head, or the mean of all; see _planes in packing.py.
function planeNumber(site, head, measure) {
  if (site.form === "long") return site.mean ? (head === "mean" ? 0 : head + 1) : head === "mean" ? 0 : head;
  if (head !== "mean") return head;
  if (site.heads === 1) return 0;
  return measure === "values" && site.values ? site.heads + 1 : site.heads;
}

function planesIn(site) {
  return site.most.length;
}

// Calls take(row, column, weight) for every weight of a plane that is kept in the page.
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

// The largest weights of each row of a plane: keys, and weights as whole numbers.
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

// The norms of the values of one head, where they are known: they end the block.
function valuesOf(site, head) {
  const columns = sizesOf(site)[1];
  const bytes = blockOf(site);
  const start = bytes.length - 4 * columns * (site.heads - head);
  return new Float32Array(bytes.slice(start, start + 4 * columns).buffer);
}

// One plane as a whole matrix; never asked of a long site.
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
