// The controls above the views: site, head, units, special tokens and measure.

function choiceOf(name, label, options, value, act) {
  const group = element("fieldset", { class: "choice" }, element("legend", {}, label));
  for (const [key, text] of options) {
    const radio = element("input", { type: "radio", name, id: `${name}-${key}`, value: key });
    radio.checked = key === value;
    radio.addEventListener("change", () => act(key));
    group.append(radio, element("label", { for: `${name}-${key}` }, text));
  }
  return group;
}

function selectOf(id, label, groups, value, act) {
  const options = groups.map(([name, each]) => {
    const items = each.map(([key, text]) => element("option", { value: key }, text));
    return name ? [element("optgroup", { label: name }, ...items)] : items;
  });
  const select = element("select", { id }, ...options.flat());
  select.value = value;
  select.addEventListener("change", () => act(select.value));
  return element("p", { class: "field" }, element("label", { for: id }, label), select);
}

function siteName(site) {
  if (site.name.includes("*")) return `${site.name}, mean of all`;
  return site.name;
}

// Show a control only if it has more than one option.
function choices(state, change) {
  const site = page.sites[state.site];
  const controls = [];
  if (page.sites.length > 1) {
    const groups = kindsHere().map((kind) => [
      KINDS[kind] || kind,
      page.sites.map((each, number) => [each, number]).filter(([each]) => each.kind === kind).map(([each, number]) => [number, siteName(each)]),
    ]);
    controls.push(selectOf("site", "Site", groups, state.site, (value) => change({ site: Number(value) })));
  }
  if (site.heads > 1) {
    const mean = site.form !== "long" || site.mean ? [["mean", `mean of ${site.heads}`]] : [];
    const heads = Array.from({ length: site.heads }, (_, head) => [head, `head ${head}`]);
    controls.push(selectOf("head", "Head", [["", [...mean, ...heads]]], state.head, (value) => change({ head: value === "mean" ? value : Number(value) })));
  }
  if (site.form === "long") {
    controls.push(choiceOf("pooling", "Blocks", [["largest", "largest"], ["mean", "mean"]], state.pooling, (value) => change({ pooling: value })));
    return controls;
  }
  const sides = [page.sides[site.rows], page.sides[site.columns]];
  if (sides.some((side) => side.words.some((word, place) => word !== side.pieces[place]))) {
    controls.push(choiceOf("units", "Units", [["words", "words"], ["pieces", "subwords"]], state.units, (value) => change({ units: value })));
  }
  if (sides.some((side) => side.special.includes(1))) {
    const options = [["shown", "shown"], ["hidden", "hidden"], ["renormalised", "renormalised"]];
    controls.push(choiceOf("specials", "Special tokens", options, state.specials, (value) => change({ specials: value })));
  }
  if (site.values) {
    controls.push(choiceOf("measure", "Measure", [["weights", "weights"], ["values", "× value norm"]], state.measure, (value) => change({ measure: value })));
  }
  return controls;
}

// Describe the current view; screen readers read it after each change, and it is printed.
function caption(table, state) {
  const { site } = table;
  const parts = [siteName(site)];
  if (site.heads > 1) parts.push(state.head === "mean" ? `mean of ${site.heads} heads` : `head ${state.head}, of ${site.heads}`);
  const [rows, columns] = site.form === "long" ? sizesOf(site) : [table.rows.length, table.columns.length];
  parts.push(`${formatCount(rows)} ${state.units === "words" && site.form !== "long" ? "words" : "tokens"} attended to ${formatCount(columns)}`);
  if (state.specials !== "shown" && site.form !== "long") parts.push(`special tokens ${state.specials}`);
  if (state.measure === "values" && site.values) parts.push("weights × value norm");
  if (site.form === "top") {
    const share = site.share[planeNumber(site, state.head, state.measure)];
    parts.push(`the ${site.kept} largest weights of each row, ${(100 * share).toFixed(1)} % of all`);
  }
  if (site.form === "long") parts.push(`the ${site.kept} largest weights of each row${site.whole ? "" : site.exactMeans ? ", a map of the largest of these, and the exact mean of each block" : ", and a map computed from these only"}`);
  return parts.join(" · ");
}
