"use strict";
// The heatmaps with their colour scale: drawing, hovering, clicking, and moving by keys.

/** The ends of the colour scale: every head of every checkpoint and every null, so that a colour means one thing. */
function colourRange() {
  const at = state.quantity;
  const numbers = [];
  for (const view of DATA.views) {
    for (const map of view.maps) {
      for (const [, , site, head] of map.cells) {
        const value = view.sites[site].heads[head].measured[at]?.[0];
        if (value !== null && value !== undefined) numbers.push(value);
      }
    }
  }
  const random = randomRange();
  if (numbers.length && random) numbers.push(...random);
  if (!numbers.length) return null;
  const [low, high] = [numbers.reduce((a, b) => Math.min(a, b)), numbers.reduce((a, b) => Math.max(a, b))];
  const positive = numbers.filter((one) => one > 0).reduce((a, b) => Math.min(a, b), Infinity);
  // Sizes that span more than a factor of 50 would show as one colour on an even scale.
  const log = DATA.quantities[at].family !== "Shape of the spectrum" && high / positive > 50;
  const floor = log ? positive : low;
  return { low: floor, high: high > floor ? high : floor + (Math.abs(floor) || 1) * 1e-3, log };
}

/** Least and largest null of the quantity, where it is the same at every scale. */
function randomRange() {
  if (DATA.quantities[state.quantity].scales) return null;
  const mapped = new Set(state.view.maps.flatMap((map) => map.cells).filter(([, , site, head]) => valueOf(site, head) !== null).map((cell) => cell[2]));
  const found = [...mapped].map((at) => unitNull(state.view, state.view.sites[at], state.quantity)?.[0]).filter((one) => one !== undefined);
  return found.length ? [found.reduce((a, b) => Math.min(a, b)), found.reduce((a, b) => Math.max(a, b))] : null;
}

function drawLegend(range) {
  const legend = byId("legend");
  const quantity = DATA.quantities[state.quantity];
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
  const random = randomRange();
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

/** The cells `[site, head]` of the least and the largest value of the quantity in this view, or null where there is none. */
function extremes() {
  const found = state.view.maps.flatMap((map) => map.cells).map(([, , site, head]) => [site, head, valueOf(site, head)]).filter((one) => one[2] !== null);
  if (!found.length) return null;
  return [found.reduce((a, b) => (b[2] < a[2] ? b : a)), found.reduce((a, b) => (b[2] > a[2] ? b : a))];
}

function drawExtremes() {
  const ends = extremes();
  const told = (words, [site, head, value]) => {
    const button = element("button", { type: "button", class: "link" }, nameOf(state.view.sites[site], headOf(site, head)));
    button.addEventListener("click", () => pick(site, head, { scroll: true }));
    return element("span", {}, `${words} `, element("b", {}, number(value)), " ", button);
  };
  byId("extremes").replaceChildren(...(ends && ends[0][2] < ends[1][2] ? [told("lowest", ends[0]), told("highest", ends[1])] : []));
}

/** A dot on a cell says that it stands out; what has no spectrum shows by its hatching already. */
const isMarked = (site, head) => !isFailed(site, head) && findingsOf(state.view, site, head).length > 0;

/** Whether a map has anything to show: single matrices often have norms alone. */
const isShown = (map) => map.cells.some(([, , site, head]) => isFailed(site, head) || valueOf(site, head) !== null);

/** What a cell says when pointed at. */
function hoverOf(siteAt, headAt) {
  const site = state.view.sites[siteAt];
  const head = site.heads[headAt];
  const title = plotText(DATA.quantities[state.quantity].title);
  const lines = [`<b>${plotText(nameOf(site, head))}</b>`];
  if (head.failure !== null) lines.push(`no spectrum: ${plotText(head.failure)}`);
  else if (!head.measured[state.quantity]) lines.push(`${title} was not computed here`);
  else lines.push(`${title} ${withError(head.measured[state.quantity])}`);
  lines.push(...findingsOf(state.view, siteAt, headAt).map((one) => plotText(one.kind)));
  return lines.join("<br>");
}

/** The nearest cell of a map in a direction, or null at its border. */
function neighbour(map, siteAt, headAt, key) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
  const here = map.cells.find((cell) => cell[2] === siteAt && cell[3] === headAt);
  // Coming from another map, as from QK to OV: the same place, if there is one.
  if (!here) return map.cells.find((cell) => cell[1] === headAt && state.view.sites[cell[2]].layer === state.view.sites[siteAt].layer) ?? map.cells[0];
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
    const attention = isAttention(map.kind);
    const parts = new Set(state.view.maps.filter((other) => isAttention(other.kind)).map((other) => other.part));
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

/** The cell of the selected head, or null where it is in another map. */
const selectedIn = (map) => map.cells.find((cell) => cell[2] === state.site && cell[3] === state.head) ?? null;

/** Move the outline alone: drawing thousands of cells again would make the arrow keys lag. */
function outlineMaps() {
  for (const plot of document.querySelectorAll("#grid figure:not([hidden]) .plot")) {
    Plotly.relayout(plot, { shapes: outlineOf(selectedIn(state.view.maps[Number(plot.dataset.map)])) });
  }
}

function drawMaps() {
  const quantity = DATA.quantities[state.quantity];
  byId("maps").classList.toggle("empty", !quantity);
  if (!quantity) {
    byId("map-notes").textContent = "No measure was computed: the scan holds no matrix.";
    return;
  }
  const range = colourRange();
  byId("meaning").textContent = quantity.meaning;
  byId("formula").textContent = quantity.formula;
  drawLegend(range);
  drawExtremes();
  const notes = [];
  const cells = state.view.maps.filter(isShown).flatMap((map) => map.cells);
  if (cells.some((cell) => isMarked(cell[2], cell[3]))) notes.push("a white dot stands out (see above)");
  if (cells.some((cell) => isFailed(cell[2], cell[3]))) notes.push("a hatched cell has no spectrum");
  if (cells.some((cell) => !isFailed(cell[2], cell[3]) && valueOf(cell[2], cell[3]) === null)) {
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
    drawHeatmap(plot, map, {
      room: plot.parentElement.clientWidth, range: range ?? { low: 0, high: 1, log: false }, valueOf, hoverOf, isFailed, isMarked,
      selected: selectedIn(map),
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
