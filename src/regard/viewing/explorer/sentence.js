// A sentence with shaded words: if a word is selected, the other words are shaded by its weights.

function sentenceView(panel, table, state) {
  const itself = table.rows.length === table.columns.length && table.rows.every((name, place) => name.text === table.columns[place].text);
  const sides = itself ? [["sentence", table.rows]] : [["queries", table.rows], ["keys", table.columns]];
  const lines = sides.map(([label, names]) => {
    const words = names.slice(0, WORDS).map((name) => element("button", { type: "button", class: "word", title: name.text, "aria-pressed": "false" }, truncated(name.text, 40)));
    const line = element("p", { class: "sentence", dir: "auto", lang: "", "data-roving": true }, ...words.flatMap((word) => [word, " "]));
    panel.append(element("h3", {}, label), line);
    return { line, words };
  });
  panel.append(asText(table));
  const show = (side, place) => {
    const looking = side === 0 && !(itself && state.direction === "received");
    const weight = (other) => (looking ? weightAt(table, place, other) : weightAt(table, other, place));
    const shaded = lines[itself ? 0 : 1 - side];
    lines.forEach((each, number) =>
      each.words.forEach((word, other) => {
        const mine = number === side && other === place;
        word.className = `word ${each === shaded ? depth(weight(other), table.most) || "" : ""}${mine ? " chosen" : ""}`;
        word.setAttribute("aria-pressed", String(mine));
      }),
    );
    if (looking) describeRow(table, place);
    else describeColumn(table, place);
  };
  if (itself) {
    const turned = choiceOf("direction", "Shade", [["given", "words it attended to"], ["received", "words that attended to it"]], state.direction, (value) => {
      state.direction = value;
      const place = lines[0].words.findIndex((word) => word.getAttribute("aria-pressed") === "true");
      if (place >= 0) show(0, place);
    });
    panel.prepend(turned);
  }
  lines.forEach(({ line, words }, side) => {
    roving(words, { on: (place) => show(side, place) });
    line.addEventListener("pointerover", (event) => {
      const place = words.indexOf(event.target.closest(".word"));
      if (place >= 0) show(side, place);
    });
  });
  const content = lines[0].words.length ? 0 : -1;
  if (content === 0) show(0, 0);
}
