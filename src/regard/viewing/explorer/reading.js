// The line of text below a view, the view as text, and keyboard navigation among words.
const LISTED = 5;
const TEXT_ROWS = 300;

function hint(text) {
  describe(text);
  document.getElementById("description").className = "quiet";
}

function describe(...parts) {
  const line = document.getElementById("description");
  line.className = "";
  const text = parts.join("");
  if (line.textContent !== text) line.textContent = text;
}

function describeCell(table, row, column) {
  const names = `${isolated(truncated(table.rows[row].text))} attended to ${isolated(truncated(table.columns[column].text))}`;
  describe(`${names}: `, describeWeight(table, row, weightAt(table, row, column)));
}

// If only the largest weights of a row are stored, any other weight is smaller than those.
function describeWeight(table, row, weight) {
  if (weight || table.site.form === "whole") return formatWeight(weight);
  return `not among the ${table.site.kept} largest of its row`;
}

function describeRow(table, row) {
  describe(isolated(truncated(table.rows[row].text)), " attended to ", listed(rankedRow(table, row, LISTED)));
}

function describeColumn(table, column) {
  describe(isolated(truncated(table.columns[column].text)), " was attended to by ", listed(rankedColumn(table, column, LISTED)));
}

function listed(entries) {
  return entries.map((each) => `${isolated(truncated(each.name.text))} ${formatWeight(each.weight)}`).join(", ") || "nothing";
}

// The view as text, created when it is opened.
function asText(table) {
  const details = element("details", { class: "text" }, element("summary", {}, "As text"));
  details.addEventListener("toggle", () => {
    if (details.children.length > 1) return;
    const lines = table.rows.slice(0, TEXT_ROWS).map((name, row) =>
      element(
        "li",
        {},
        element("bdi", {}, truncated(name.text, 60)),
        " attended to ",
        listed(rankedRow(table, row, LISTED)),
      ),
    );
    details.append(element("ol", { start: table.firstRow + 1 }, ...lines));
    if (table.rows.length > TEXT_ROWS) {
      details.append(element("p", { class: "quiet" }, `Only the first ${TEXT_ROWS} of ${formatCount(table.rows.length)} rows are shown.`));
    }
  });
  return details;
}

// Roving tabindex: Tab reaches one of the items, the arrow keys move to the others.
function roving(items, { across = 1, on = () => {} } = {}) {
  items.forEach((item, place) => {
    item.tabIndex = place === 0 ? 0 : -1;
  });
  const container = items.length ? items[0].parentElement.closest("[data-roving]") : null;
  if (!container) return;
  container.addEventListener("focusin", (event) => {
    const place = items.indexOf(event.target);
    if (place < 0) return;
    for (const item of items) if (item.tabIndex === 0) item.tabIndex = -1;
    items[place].tabIndex = 0;
    on(place);
  });
  container.addEventListener("keydown", (event) => {
    const place = items.indexOf(event.target);
    if (place < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const row = Math.floor(place / across);
    const sideways = getComputedStyle(container).direction === "rtl" ? -1 : 1;
    const next = {
      ArrowRight: place + sideways,
      ArrowLeft: place - sideways,
      ArrowDown: place + across,
      ArrowUp: place - across,
      Home: across > 1 ? row * across : 0,
      End: across > 1 ? (row + 1) * across - 1 : items.length - 1,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    if (items[next]) items[next].focus();
  });
}
