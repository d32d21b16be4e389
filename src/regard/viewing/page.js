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
  const largest = most.map((each) => `${isolated(each.other)} (${each.text})`).join(", ");
  entry.querySelector("p.seen").textContent =
    `${isolated(word)} ${target ? "attended to" : "was attended to by"} ${largest || "nothing"}`;
}

function wordAt(event) {
  return event.target instanceof Element ? event.target.closest("dd > span[tabindex]") : null;
}

for (const entry of document.querySelectorAll("article")) {
  if (!entry.querySelector("tbody")) continue;
  for (const side of ["source", "target"]) reachable(entry.querySelector(`dd.${side}`), words(entry, side));
  lineBelow(entry.querySelector("dl"));
}
document.getElementById("hint").hidden = !document.querySelector("p.seen");

document.addEventListener("pointerover", (event) => {
  const word = wordAt(event) || (document.activeElement || document.body).closest("dd > span[tabindex]");
  if (word !== (lit[0] || null)) show(word);
});
document.addEventListener("focusin", (event) => show(wordAt(event)));
document.addEventListener("focusout", () => show(null));
