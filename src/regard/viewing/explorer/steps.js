// One word over time: the weights of one key for each query (a column), or of one query for each key (a row).

function stepsView(panel, table, state) {
  if (!table.rows.length || !table.columns.length) return;
  const options = [
    ["column", "Keys", table.columns],
    ["row", "Queries", table.rows],
  ].map(([kind, label, names]) =>
    element("optgroup", { label }, ...names.slice(0, WORDS).map((name, place) => element("option", { value: `${kind} ${place}` }, `${place + 1}  ${truncated(name.text)}`))),
  );
  const select = element("select", { id: "word" }, ...options);
  const chart = element("ol", { class: "steps", "data-roving": true });
  panel.append(element("p", { class: "field" }, element("label", { for: "word" }, "Word"), select), chart, asText(table));
  const draw = () => {
    const [kind, number] = select.value.split(" ");
    const place = Number(number);
    state.word = select.value;
    const names = (kind === "column" ? table.rows : table.columns).slice(0, WORDS);
    const weights = names.map((_, step) => (kind === "column" ? weightAt(table, step, place) : weightAt(table, place, step)));
    const bars = names.map((name, step) =>
      element(
        "li",
        { "aria-label": `${isolated(truncated(name.text))} ${formatWeight(weights[step])}` },
        element("span", { class: "number", "aria-hidden": "true" }, weights[step] >= 0.005 ? formatNumber(weights[step]) : ""),
        element("i", { level: ((weights[step] || 0) / table.most).toFixed(4) }),
        element("bdi", { title: name.text, "aria-hidden": "true" }, truncated(name.text, 14)),
      ),
    );
    const fresh = element("ol", { class: names.length > 48 ? "steps dense" : "steps", "data-roving": true, "aria-label": kind === "column" ? "Attention of each step to the word" : "Attention of the word to each key" }, ...bars);
    panel.querySelector("ol.steps").replaceWith(fresh);
    const cell = (step) => (kind === "column" ? describeCell(table, step, place) : describeCell(table, place, step));
    roving(bars, { on: cell });
    fresh.addEventListener("pointerover", (event) => {
      const step = bars.indexOf(event.target.closest("li"));
      if (step >= 0) cell(step);
    });
    if (kind === "column") describeColumn(table, place);
    else describeRow(table, place);
  };
  select.addEventListener("change", draw);
  const busiest = rankedMass(table);
  select.value = state.word || `column ${busiest}`;
  if (select.selectedIndex < 0) select.value = `column ${busiest}`;
  draw();
}

// Return the key with the largest total weight, ignoring special tokens.
function rankedMass(table) {
  const mass = table.columns.map((name, column) => (name.special ? 0 : table.rows.reduce((sum, _, row) => sum + (weightAt(table, row, column) || 0), 0)));
  return Math.min(mass.indexOf(Math.max(...mass)), WORDS - 1);
}
