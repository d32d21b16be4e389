
"use strict";
// Show the weights of the word under the pointer, read from the table below it.
const MOST = 5;
let lit = [];

function words(entry, side) {
  return [...entry.querySelectorAll(`dd.${side} > span`)];
}

function clear() {
  for (const word of lit) word.className = "";
  for (const line of new Set(lit.map((word) => word.closest("article").querySelector("p.seen")))) {
    line.textContent = "";
  }
  lit = [];
}

function show(word) {
  clear();
  if (!word) return;
  const entry = word.closest("article");
  const target = word.parentElement.classList.contains("target");
  const place = words(entry, target ? "target" : "source").indexOf(word);
  const rows = [...entry.querySelector("tbody").rows];
  const seen = words(entry, target ? "source" : "target").map((other, number) => {
    const cell = target ? rows[place].cells[number + 1] : rows[number].cells[place + 1];
    other.className = cell.className;
    return { other, weight: Number(cell.textContent) || 0, text: cell.textContent };
  });
  word.className = "chosen";
  lit = [word, ...seen.map((each) => each.other)];
  const most = seen.filter((each) => each.weight).sort((a, b) => b.weight - a.weight).slice(0, MOST);
  // First-strong isolates keep a right-to-left word from changing the order of the numbers around it.
  const isolated = (each) => `\u2068${each.textContent}\u2069`;
  const largest = most.map((each) => `${isolated(each.other)} (${each.text})`).join(", ");
  entry.querySelector("p.seen").textContent =
    `${isolated(word)} ${target ? "attended to" : "was attended to by"} ${largest || "nothing"}`;
}

function wordAt(event) {
  return event.target instanceof Element ? event.target.closest("dd > span[tabindex]") : null;
}

function reachable(word, reach) {
  word.tabIndex = reach ? 0 : -1;
}

for (const entry of document.querySelectorAll("article")) {
  if (!entry.querySelector("tbody")) continue;
  for (const side of ["source", "target"]) {
    words(entry, side).forEach((word, place) => reachable(word, place === 0));
  }
  const line = document.createElement("p");
  line.className = "seen";
  line.setAttribute("aria-live", "polite");
  entry.querySelector("dl").after(line);
}
document.getElementById("hint").hidden = !document.querySelector("p.seen");

document.addEventListener("pointerover", (event) => {
  const word = wordAt(event) || (document.activeElement || document.body).closest("dd > span[tabindex]");
  if (word !== (lit[0] || null)) show(word);
});
document.addEventListener("focusin", (event) => {
  const word = wordAt(event);
  if (word) for (const other of word.parentElement.children) reachable(other, other === word);
  show(word);
});
document.addEventListener("focusout", () => show(null));
document.addEventListener("keydown", (event) => {
  const word = wordAt(event);
  if (!word || event.altKey || event.ctrlKey || event.metaKey) return;
  const line = [...word.parentElement.children];
  const onward = getComputedStyle(word.parentElement).direction === "rtl" ? -1 : 1;
  const place = line.indexOf(word);
  const next = {
    ArrowRight: place + onward,
    ArrowLeft: place - onward,
    Home: 0,
    End: line.length - 1,
  }[event.key];
  if (next === undefined || !line[next]) return;
  event.preventDefault();
  line[next].focus();
});
