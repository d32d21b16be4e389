// Create elements and format text. Strings become text nodes, never markup.

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svgElement(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "level") node.style.setProperty("--level", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// First-strong isolates keep a right-to-left word from changing the order of the text around it.
function isolated(text) {
  return `\u2068${text}\u2069`;
}

function truncated(text, longest = 24) {
  const letters = [...text];
  return letters.length > longest ? `${letters.slice(0, longest - 1).join("")}…` : text;
}

function formatCount(number) {
  return number.toLocaleString("en");
}

// Format a weight with this many digits, without a leading zero: .90 or 1; NaN is "?".
function formatNumber(weight, digits = 2) {
  if (Number.isNaN(weight)) return "?";
  const text = weight.toFixed(weight >= 10 ? 1 : digits).replace(/^0\./, ".");
  return Number(text) === Math.round(Number(text)) && Math.abs(weight - Number(text)) < 1e-9 ? String(Number(text)) : text;
}

// Format a weight for a sentence; small weights in scientific notation.
function formatWeight(weight) {
  if (Number.isNaN(weight)) return "NaN";
  if (weight > 0 && weight < 0.0005) return weight.toExponential(1);
  return formatNumber(weight, 3);
}

// Return the CSS class of a weight: one of the 16 levels in entry.css.
function depth(weight, most) {
  const step = Math.round((Math.min(weight, most) / most) * 16);
  return step > 0 ? `l${step}` : false;
}

function accent() {
  const numbers = getComputedStyle(document.body).getPropertyValue("--accent").trim().split(/\s+/);
  return numbers.map(Number);
}
