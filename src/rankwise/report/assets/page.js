"use strict";
// The page: what is selected, and which parts are drawn again when that changes.

const DATA = JSON.parse(byId("data").textContent);

const state = { view: DATA.views.at(-1), quantity: 0, site: null, head: null, log: true, relative: false };

const valueOf = (at) => (site, head) => state.view.sites[site].heads[head].measured[at]?.[0] ?? null;

/** The ends of the colour scale: every head of every checkpoint and every null, so that a colour means one thing. */
function colourRange(at) {
  const numbers = [];
  for (const view of DATA.views) {
    for (const map of view.maps) {
      for (const [, , site, head] of map.cells) {
        const value = view.sites[site].heads[head].measured[at]?.[0];
        if (value !== null && value !== undefined) numbers.push(value);
      }
    }
  }
  const random = randomRange(at);
  if (numbers.length && random) numbers.push(...random);
  if (!numbers.length) return null;
  const [low, high] = [numbers.reduce((a, b) => Math.min(a, b)), numbers.reduce((a, b) => Math.max(a, b))];
  const positive = numbers.filter((one) => one > 0).reduce((a, b) => Math.min(a, b), Infinity);
  // Sizes that span more than a factor of 50 would show as one colour on an even scale.
  const log = DATA.quantities[at].family !== "Shape of the spectrum" && high / positive > 50;
  const floor = log ? positive : low;
  return { low: floor, high: high > floor ? high : floor + (Math.abs(floor) || 1) * 1e-3, log };
}

/** Least and largest null of a quantity that has the same null at every scale. */
function randomRange(at) {
  if (DATA.quantities[at].scales) return null;
  const found = state.view.sites.filter((site) => site.null !== null && valueOf(at)(state.view.sites.indexOf(site), 0) !== null)
    .map((site) => state.view.nulls[site.null].measured[at]?.[0]).filter((one) => one !== null && one !== undefined);
  return found.length ? [Math.min(...found), Math.max(...found)] : null;
}

function drawLegend(at, range) {
  const legend = byId("legend");
  const quantity = DATA.quantities[at];
  if (!range) {
    legend.replaceChildren();
    return;
  }
  const place = (value) => range.log
    ? Math.log(value / range.low) / Math.log(range.high / range.low) : (value - range.low) / (range.high - range.low);
  const value = (share) => range.log ? range.low * (range.high / range.low) ** share : range.low + share * (range.high - range.low);
  const bar = element("div", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${COLOURS.join(", ")})`;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const tick = element("span", { class: "tick" }, number(value(share), 3));
    tick.style.left = `${100 * share}%`;
    return tick;
  });
  const random = randomRange(at);
  const marks = [];
  if (random) {
    const spread = random[1] - random[0] > 0.02 * (range.high - range.low);
    const words = spread ? `random ${number(random[0], 3)} to ${number(random[1], 3)}` : `${quantity.key === "over_edge" ? "random edge" : "random"} ${number(random[0], 3)}`;
    const middle = (place(random[0]) + place(random[1])) / 2;
    const mark = element("span", { class: middle > 0.8 ? "random right" : middle < 0.2 ? "random left" : "random" }, words);
    mark.style.left = `${100 * middle}%`;
    marks.push(mark);
    const span = element("span", { class: "span" });
    span.style.left = `${100 * place(random[0])}%`;
    span.style.width = `${Math.max(0, 100 * (place(random[1]) - place(random[0])))}%`;
    marks.push(span);
  }
  legend.replaceChildren(element("div", { class: "rule" }, ...marks, bar, ...ticks), element("span", { class: "quiet" }, range.log ? "logarithmic colours" : ""));
  legend.setAttribute("aria-label", `colour scale of ${quantity.title}, from ${number(range.low)} to ${number(range.high)}`);
}

const isFailed = (site, head) => state.view.sites[site].heads[head].failure !== null;
const isMarked = (site, head) => state.view.findings.some((one) => one.site === site && (one.head === null || one.head === head) && one.kind !== "failed");

/** Whether a map has anything to show: single matrices often have norms alone. */
const isShown = (map) => map.cells.some(([, , site, head]) => isFailed(site, head) || valueOf(state.quantity)(site, head) !== null);

function hoverOf(at) {
  return (siteAt, headAt) => {
    const site = state.view.sites[siteAt];
    const head = site.heads[headAt];
    const lines = [`<b>${plotText(nameOf(site, head))}</b>`];
    if (site.kind !== "qk" && site.kind !== "ov") lines.push(plotText(site.name));
    if (head.failure !== null) lines.push(`no spectrum: ${plotText(head.failure)}`);
    else if (!head.measured[at]) lines.push(`${plotText(DATA.quantities[at].title)} was not computed here`);
    else lines.push(`${plotText(DATA.quantities[at].title)} ${withError(head.measured[at])}`);
    for (const one of state.view.findings) {
      if (one.site === siteAt && (one.head === null || one.head === headAt)) lines.push(plotText(one.kind));
    }
    return lines.join("<br>");
  };
}

/** The nearest cell of a map in a direction, or null at its border. */
function neighbour(map, siteAt, headAt, key) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  const here = map.cells.find((cell) => cell[2] === siteAt && cell[3] === headAt);
  if (!here) return map.cells[0];
  const ahead = map.cells.filter((cell) => step[0]
    ? Math.sign(cell[0] - here[0]) === step[0] : cell[0] === here[0] && Math.sign(cell[1] - here[1]) === step[1]);
  const far = (cell) => 1000 * Math.abs(cell[0] - here[0]) + Math.abs(cell[1] - here[1]);
  return ahead.reduce((best, cell) => (best && far(best) <= far(cell) ? best : cell), null);
}

function makeMaps() {
  const grid = byId("grid");
  grid.replaceChildren();
  let part = null;
  state.view.maps.forEach((map, at) => {
    const attention = ["qk", "ov"].includes(map.kind);
    const parts = new Set(state.view.maps.filter((other) => other.kind === "qk" || other.kind === "ov").map((other) => other.part));
    if (attention && map.part !== part && parts.size > 1) grid.append(element("h3", { class: "part" }, map.part || "model"));
    part = map.part;
    const plot = element("div", { class: "plot", tabindex: "0", role: "application", "data-map": String(at),
      "aria-label": `${map.title}${map.part ? `, ${map.part}` : ""}: layer by ${map.column_name}; arrow keys move between cells` });
    plot.addEventListener("keydown", (event) => {
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      const cell = neighbour(map, state.site, state.head, event.key);
      if (cell) pick(cell[2], cell[3], { scroll: false });
    });
    grid.append(element("figure", { class: map.column_name === "matrix" ? "wide" : null },
      element("figcaption", {}, map.title, !attention && map.part ? element("code", {}, ` ${map.part}`) : null), element("div", { class: "scroll" }, plot)));
  });
}

function drawMaps() {
  const range = colourRange(state.quantity);
  const quantity = DATA.quantities[state.quantity];
  byId("meaning").textContent = quantity ? quantity.meaning : "";
  byId("formula").textContent = quantity ? quantity.formula : "";
  drawLegend(state.quantity, range);
  const notes = [];
  const cells = state.view.maps.filter(isShown).flatMap((map) => map.cells);
  if (cells.some((cell) => isMarked(cell[2], cell[3]))) notes.push("a white dot stands out (see above)");
  if (cells.some((cell) => isFailed(cell[2], cell[3]))) notes.push("a hatched cell has no spectrum");
  if (range && cells.some((cell) => !isFailed(cell[2], cell[3]) && valueOf(state.quantity)(cell[2], cell[3]) === null)) {
    notes.push("a grey cell was not measured in this way");
  }
  const hidden = [];
  const lead = state.view.maps.length ? "Click a cell, or move with the arrow keys." : "No matrix of this scan belongs to a layer: see the table below.";
  for (const plot of document.querySelectorAll("#grid .plot")) {
    const map = state.view.maps[Number(plot.dataset.map)];
    plot.closest("figure").hidden = !isShown(map);
    if (!isShown(map)) {
      hidden.push(map.title + (map.part ? ` of ${map.part}` : ""));
      continue;
    }
    const chosen = map.cells.find((cell) => cell[2] === state.site && cell[3] === state.head);
    drawHeatmap(plot, map, {
      room: plot.parentElement.clientWidth, range: range ?? { low: 0, high: 1, log: false }, valueOf: quantity ? valueOf(state.quantity) : () => null,
      hoverOf: quantity ? hoverOf(state.quantity) : () => "", isFailed, isMarked, selected: chosen ?? null,
    });
    if (!plot.dataset.wired) {
      plot.dataset.wired = "yes";
      plot.on("plotly_click", ({ points }) => {
        const cell = map.cells.find(([row, column]) => row === points[0].y && column === points[0].x);
        if (cell) pick(cell[2], cell[3], { scroll: true });
      });
    }
  }
  if (hidden.length) notes.push(`not measured in this way: ${hidden.join(", ")}`);
  byId("map-notes").textContent = lead + (notes.length ? ` Here ${notes.join("; ")}.` : "");
}

function drawPanel() {
  const panel = byId("panel");
  panel.hidden = state.site === null;
  if (panel.hidden) return;
  const plot = fillPanel(panel, DATA, state.view, state.site, state.head, {
    log: state.log,
    onLog: (log) => {
      state.log = log;
      drawPanel();
      panel.querySelector(`.toggle button[aria-pressed="true"]`).focus();
    },
    onPick: (site, head) => pick(site, head, { scroll: false }),
  });
  const site = state.view.sites[state.site];
  if (plot) {
    drawSpectrum(plot, site.heads[state.head], site.null === null ? null : state.view.nulls[site.null], {
      log: state.log, colour: colourOfKind(site.kind, theme()), width: plot.clientWidth, height: plot.clientHeight,
    });
  }
  if (DATA.views.length > 1 && DATA.quantities.length) drawCourse(byId("course"), site.name, state.head);
}

/** For a series: the chosen quantity of the chosen head over the checkpoints. */
function drawCourse(target, name, headAt) {
  const colours = theme();
  const found = DATA.views.map((view) => {
    const site = view.sites.find((one) => one.name === name);
    return { step: view.step, pair: site?.heads[headAt]?.measured[state.quantity], kind: site?.kind };
  }).filter((one) => one.pair);
  if (!found.length) return;
  const colour = colourOfKind(found[0].kind, colours);
  const steps = found.map((one) => one.step);
  target.className = "course";
  Plotly.react(target, [{
    type: "scatter", mode: "lines+markers", x: steps, y: found.map((one) => one.pair[0]), line: { color: colour, width: 2 },
    marker: { color: colour, size: found.map((one) => (one.step === state.view.step ? 11 : 6)) }, hovertemplate: "step %{x}: %{y:.5g}<extra></extra>",
  }], layoutOf(colours, target.clientWidth, 190, { l: 62, r: 14, t: 30, b: 40 }, {
    title: { text: plotText(`${DATA.quantities[state.quantity].title} over the series`), x: 0, font: { size: 13, color: colours.ink } },
    xaxis: axisOf(colours, "step", { showgrid: false, nticks: 6 }), yaxis: axisOf(colours, "", { rangemode: "tozero", nticks: 4 }),
  }), CONFIG);
}

/** The points of the scatter: rotary heads by their pair sums, shared keys by their groups, all others by head. */
function scatterSeries() {
  const colours = theme();
  const made = new Map();
  const nulls = new Set();
  const add = (key, one, point) => {
    if (!(point.half_sum > 0) || !(point.nuclear > 0)) return;
    if (!made.has(key)) made.set(key, { ...one, points: [] });
    made.get(key).points.push(point);
  };
  state.view.sites.forEach((site, siteAt) => {
    const kind = ["qk", "ov"].includes(site.kind) ? site.kind.toUpperCase() : site.kind;
    const colour = colourOfKind(site.kind, colours);
    const random = site.null === null ? null : state.view.nulls[site.null].measured[DATA.quantities.findIndex((one) => one.key === "relative_gap")]?.[0];
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

function drawBalance() {
  const { series, nulls } = scatterSeries();
  const target = byId("scatter");
  const notes = [];
  byId("balance").classList.toggle("empty", !series.length);
  byId("scatter-key").replaceChildren(...(series.length ? scatterKey(series, nulls) : []));
  if (!series.length) {
    Plotly.purge(target);
    byId("scatter-notes").textContent = DATA.change
      ? "A change has no factors of its own, so it has no balance." : "No product of two factors was scanned, so there is no balance to show.";
    return;
  }
  if (series.some((one) => one.symbol === "square")) notes.push("A rotary head is drawn by the sum over its frequency pairs: within a pair its factors can be balanced, across pairs they cannot. The line of random factors is not for these.");
  if (series.some((one) => one.symbol === "diamond")) notes.push("Heads that share keys or values are drawn as one point for each group: the balance law holds for the group.");
  notes.push("Random factors: the gap is near d_k / 4d of the half-sum, the ratio of head size to width.");
  byId("scatter-notes").textContent = notes.join(" ");
  drawScatter(target, series, nulls, { relative: state.relative, width: target.clientWidth, height: target.clientHeight });
  if (!target.dataset.wired) {
    target.dataset.wired = "yes";
    target.on("plotly_click", ({ points }) => {
      if (points[0].customdata) pick(...points[0].customdata, { scroll: true });
    });
  }
}

/** Select a head: the maps outline it, the panel tells it. */
function pick(site, head, { scroll } = { scroll: true }) {
  state.site = site;
  state.head = head;
  history.replaceState(null, "", `#site-${site}-head-${head}`);
  drawMaps();
  drawPanel();
  if (scroll) byId("panel").scrollIntoView({ block: "nearest", behavior: "instant" });
}

function pickFromAddress() {
  const found = /^#site-(\d+)-head-(\d+)$/.exec(location.hash);
  if (!found || !state.view.sites[found[1]]?.heads[found[2]]) return false;
  pick(Number(found[1]), Number(found[2]), { scroll: true });
  return true;
}

function showStep(at) {
  const before = state.site === null ? null : state.view.sites[state.site].name;
  state.view = DATA.views[at];
  const site = state.view.sites.findIndex((one) => one.name === before);
  state.site = site < 0 || !state.view.sites[site].heads[state.head] ? null : site;
  if (state.site === null) selectFirst();
  for (const step of document.querySelectorAll(".step")) step.hidden = Number(step.dataset.step) !== at;
  byId("step-name").textContent = `step ${state.view.step.toLocaleString("en")}`;
  makeMaps();
  table.show(state.view);
  drawAll();
}

/** What a reader should see first: the most telling finding, else the first head with a spectrum. */
function selectFirst() {
  const told = state.view.findings.find((one) => one.site !== null && one.kind !== "failed");
  const first = state.view.maps.flatMap((map) => map.cells).find((cell) => state.view.sites[cell[2]].heads[cell[3]].count);
  const other = state.view.sites.findIndex((site) => site.heads.length);
  if (told) [state.site, state.head] = [told.site, told.head ?? 0];
  else if (first) [state.site, state.head] = [first[2], first[3]];
  else [state.site, state.head] = other < 0 ? [null, null] : [other, 0];
}

function drawAll() {
  drawMaps();
  drawPanel();
  drawBalance();
}

function fillQuantities() {
  const families = [...new Set(DATA.quantities.map((one) => one.family))];
  byId("quantity").append(...families.map((family) => element("optgroup", { label: family },
    ...DATA.quantities.map((one, at) => (one.family === family ? element("option", { value: String(at) }, one.title) : null)))));
  byId("quantity").addEventListener("change", (event) => {
    state.quantity = Number(event.target.value);
    drawMaps();
    if (DATA.views.length > 1) drawPanel();
  });
}

const table = makeTable(DATA, (site, head) => pick(site, head));

function start() {
  fillQuantities();
  for (const [name, relative] of [["scatter-half", false], ["scatter-gap", true]]) {
    byId(name).addEventListener("click", () => {
      state.relative = relative;
      byId("scatter-half").setAttribute("aria-pressed", String(!relative));
      byId("scatter-gap").setAttribute("aria-pressed", String(relative));
      drawBalance();
    });
  }
  byId("balance-buttons").append(saveButton(byId("scatter"), "rankwise-balance"));
  byId("step")?.addEventListener("input", (event) => showStep(Number(event.target.value)));
  byId("steps")?.addEventListener("submit", (event) => event.preventDefault());
  selectFirst();
  makeMaps();
  table.show(state.view);
  if (!pickFromAddress()) {
    drawMaps();
    drawPanel();
  }
  drawBalance();
  window.addEventListener("hashchange", pickFromAddress);
  let wide = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== wide) drawAll();
    wide = window.innerWidth;
  });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) window.matchMedia(query).addEventListener("change", drawAll);
}

start();
