"use strict";
// Half-sum against nuclear norm: which points stand for which heads, and what the lines are.

/** The points of the scatter: rotary heads by their pair sums, shared keys by their groups, all others by head. */
function scatterSeries() {
  const colours = theme();
  const made = new Map();
  const nulls = new Set();
  const relativeGap = DATA.quantities.findIndex((one) => one.key === "relative_gap");
  const add = (key, one, point) => {
    if (!(point.half_sum > 0) || !(point.nuclear > 0)) return;
    if (!made.has(key)) made.set(key, { ...one, points: [] });
    made.get(key).points.push(point);
  };
  state.view.sites.forEach((site, siteAt) => {
    const kind = isAttention(site.kind) ? site.kind.toUpperCase() : site.kind;
    const colour = colourOfKind(site.kind, colours);
    const random = unitNull(state.view, site, relativeGap)?.[0];
    const point = (headAt, part, nuclear, label) => ({
      site: siteAt, head: headAt, half_sum: part.half_sum, nuclear, relative: part.relative,
      hover: `<b>${plotText(label)}</b><br>half-sum ${number(part.half_sum)}<br>nuclear norm ${number(nuclear)}<br>gap ${percent(part.relative)}`,
    });
    const paired = site.heads.some((head) => head.pairs);
    if (site.group.length && !paired) {
      const size = site.heads.length / site.group.length;
      site.group.forEach((part, at) => {
        const label = `layer ${site.layer} · heads ${at * size}–${(at + 1) * size - 1} · ${kind}`;
        add(`${kind} group`, { name: `${kind}, groups of heads`, colour, symbol: "diamond" }, point(at * size, part, part.nuclear, label));
        if (part.null > 0) nulls.add(Number(part.null.toPrecision(2)));
      });
      return;
    }
    site.heads.forEach((head, headAt) => {
      const part = head.pairs ?? head.balance;
      if (!part) return;
      const label = nameOf(site, head);
      if (head.pairs) add(`${kind} pairs`, { name: `${kind}, rotary pair sums`, colour, symbol: "square" }, point(headAt, part, part.pair_sum, label));
      else {
        add(kind, { name: kind, colour, symbol: site.kind === "ov" ? "triangle-up" : "circle" }, point(headAt, part, part.nuclear, label));
        if (random > 0) nulls.add(Number(random.toPrecision(2)));
      }
    });
  });
  return { series: [...made.values()], nulls: [...nulls].sort((a, b) => a - b).slice(0, 3) };
}

/** What the lines and symbols of the scatter are. */
function scatterKey(series, nulls) {
  const colours = theme();
  const draw = (d, attributes) => {
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [name, value] of Object.entries({ width: 22, height: 12, "aria-hidden": "true" })) picture.setAttribute(name, value);
    for (const [name, value] of Object.entries({ d, ...attributes })) path.setAttribute(name, value);
    picture.append(path);
    return picture;
  };
  const symbols = { circle: "M6 6a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "triangle-up": "M11 1L17 11H5Z", diamond: "M11 0L17 6L11 12L5 6Z", square: "M6 1H16V11H6Z" };
  const line = (words, attributes) => element("li", {}, draw("M0 6H22", { fill: "none", "stroke-width": 2, ...attributes }), words);
  return [
    ...(state.relative ? [] : [line("balanced: half-sum = nuclear norm", { stroke: colours.ink })]),
    ...nulls.map((gap) => line(`random factors: gap ${percent(gap)} of half-sum`, { stroke: colours.null, "stroke-dasharray": "5 4" })),
    ...series.map((one) => element("li", {}, draw(symbols[one.symbol], { fill: one.colour }), `${one.name} (${one.points.length.toLocaleString("en")})`)),
  ];
}

/** Draw the scatter; a change has no balance, and its page no place for one. */
function drawBalance() {
  if (DATA.change) return;
  const { series, nulls } = scatterSeries();
  const target = byId("scatter");
  const notes = [];
  const paired = series.some((one) => one.symbol === "square");
  byId("balance").classList.toggle("empty", !series.length);
  byId("scatter-key").replaceChildren(...(series.length ? scatterKey(series, nulls) : []));
  if (!series.length) {
    Plotly.purge(target);
    byId("scatter-notes").textContent = "No product of two factors was scanned, so there is no balance to show.";
    return;
  }
  if (paired) notes.push("A rotary head is drawn by the sum over its frequency pairs: within a pair its factors can be balanced, across pairs they cannot. The line of random factors is not for these.");
  if (series.some((one) => one.symbol === "diamond")) notes.push("Heads that share keys or values are drawn as one point for each group: the balance law holds for the group.");
  notes.push("Random factors: the gap is near d_k / 4d of the half-sum, the ratio of head size to width.");
  byId("scatter-notes").textContent = notes.join(" ");
  drawScatter(target, series, nulls, { relative: state.relative, paired, width: target.clientWidth, height: target.clientHeight });
  if (!target.dataset.wired) {
    target.dataset.wired = "yes";
    target.on("plotly_click", ({ points }) => {
      if (points[0].customdata) pick(...points[0].customdata, { scroll: true });
    });
  }
}

function wireBalance() {
  for (const [name, relative] of [["scatter-half", false], ["scatter-gap", true]]) {
    byId(name).addEventListener("click", () => {
      state.relative = relative;
      byId("scatter-half").setAttribute("aria-pressed", String(!relative));
      byId("scatter-gap").setAttribute("aria-pressed", String(relative));
      drawBalance();
    });
  }
  byId("balance-buttons").append(saveButton(byId("scatter"), "rankwise-balance"));
}
