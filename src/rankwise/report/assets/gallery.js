"use strict";
// The theory's figures: each is drawn from the record alone, at the scale and the decay that the sliders show.

const RECORD = JSON.parse(byId("data").textContent);

// Okabe and Ito's colours: told apart with any kind of colour vision.
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d00", "#7b4fa3", "#a4262c", "#4d7c0f"];
const chosen = { alpha: Number(byId("alpha").value), decay: Number(byId("decay").value) };
const MARGIN = { l: 52, r: 12, t: 8, b: 40 };

const curve = (text) => Array.from(unpack(text));
const alphaText = (alpha) => (alpha < 1e-3 ? `10<sup>${Math.round(Math.log10(alpha))}</sup>` : number(alpha));
const lineOf = (x, y, line, more = {}) => ({ type: "scatter", mode: "lines", x, y, line, hoverinfo: "skip", ...more });
const labelled = (text) => ({ hoverinfo: "all", hovertemplate: `${plotText(text)}: %{y:.4g} at %{x:.4g}<extra></extra>` });

function draw(id, traces, { x, y, log = false, shapes = [], range, xrange }) {
  const target = byId(id);
  const colours = theme();
  const layout = layoutOf(colours, target.clientWidth, target.clientHeight, MARGIN, {
    shapes,
    xaxis: axisOf(colours, x, { range: xrange, nticks: 6, showgrid: false }),
    yaxis: axisOf(colours, y, log ? { type: "log", range: range.map(Math.log10), ...logTicks(...range) } : { range, nticks: 6 }),
  });
  return Plotly.react(target, traces, layout, CONFIG);
}

/** A staircase: constant from each time to the next. */
function stairs(times, values, end) {
  const x = [];
  const y = [];
  times.forEach((time, at) => {
    x.push(time, at + 1 < times.length ? times[at + 1] : end);
    y.push(values[at], values[at]);
  });
  return [x, y];
}

const extent = (lists) => {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) for (const one of list) if (Number.isFinite(one)) [low, high] = [Math.min(low, one), Math.max(high, one)];
  const room = 0.06 * (high - low || 1);
  return [low - room, high + room];
};

const figure = RECORD.diagonal;
const times = curve(figure.times);
const runs = figure.runs.map((run) => ({ ...run, losses: curve(run.losses), products: run.products.map(curve) }));
const path = figure.path.map((stage) => ({ ...stage, products: curve(stage.products) }));
const order = [...new Set(path.map((stage) => stage.coordinate))];
const hueOf = (coordinate) => HUES[order.indexOf(coordinate) % HUES.length];
const end = times.at(-1);
const plateauTimes = [0, ...path.map((stage) => stage.time)];

function drawDiagonal() {
  const colours = theme();
  const run = runs[chosen.alpha];
  const losses = runs.map((one, at) => lineOf(times, one.losses, at === chosen.alpha
    ? { color: colours.accent, width: 2.5 } : { color: colours.null, width: 1 }, {
    opacity: at === chosen.alpha ? 1 : 0.45, ...labelled(`α = ${one.alpha}`),
  }));
  // The chosen run above the others, the limit above all.
  losses.push(losses.splice(chosen.alpha, 1)[0]);
  const [x, y] = stairs(plateauTimes, [figure.start_loss, ...path.map((stage) => stage.loss)], end);
  losses.push(lineOf(x, y, { color: colours.ink, width: 1.2, dash: "dash" }));
  draw("loss", losses, { x: "t / log(1/α)", y: "", range: extent(runs.map((one) => one.losses)), xrange: [0, end] });
  const parts = [["query-key", 0, figure.width], ["value-output", figure.width, 2 * figure.width]];
  for (const [id, first, last] of parts) {
    const some = (list) => list.filter((_, at) => at >= first && at < last);
    const idle = [];
    const active = [];
    for (let coordinate = first; coordinate < last; coordinate += 1) {
      const isActive = order.includes(coordinate);
      const name = `channel ${coordinate - first}`;
      (isActive ? active : idle).push(lineOf(times, run.products[coordinate],
        isActive ? { color: hueOf(coordinate), width: 2 } : { color: colours.null, width: 1 }, labelled(name)));
      if (isActive) {
        const [steps, values] = stairs(plateauTimes, [0, ...path.map((stage) => stage.products[coordinate])], end);
        active.push(lineOf(steps, values, { color: hueOf(coordinate), width: 1, dash: "dash" }, { opacity: 0.8 }));
      }
    }
    draw(id, [...idle, ...active], {
      x: "t / log(1/α)", y: "", xrange: [0, end],
      range: extent([...runs.flatMap((one) => some(one.products)), ...path.map((stage) => some(stage.products))]),
    });
  }
}

function fillStages() {
  const run = runs[chosen.alpha];
  const head = ["", "activates", "sign", "predicted", "measured", "ratio", "margin", "loss after", ""];
  const rows = path.map((stage, at) => {
    const measured = run.stage_times[at];
    const swatch = element("span", { class: "swatch" });
    swatch.style.borderColor = hueOf(stage.coordinate);
    const dropped = stage.dropped.length ? `drops ${stage.dropped.join(", ")}` : "";
    const words = [run.overlap[at] ? "overlaps" : "", measured === null ? "not reached" : "", dropped].filter(Boolean).join(", ");
    const cells = [stage.sign > 0 ? "+" : "−", number(stage.time, 5), number(measured, 5),
      measured === null ? "–" : number(measured / stage.time, 4), number(stage.margin, 3), number(stage.loss, 4), words];
    return element("tr", {}, element("th", { scope: "row" }, swatch, String(at + 1)), element("td", {}, stage.name),
      ...cells.map((text) => element("td", {}, text)));
  });
  byId("stages").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
}

const full = RECORD.matrices.runs.map((run) => ({
  ...run, times: curve(run.times), losses: curve(run.losses),
  values: Object.fromEntries(Object.entries(run.values).map(([name, lists]) => [name, lists.map(curve)])),
}));

function drawMatrices() {
  const colours = theme();
  const at = Math.min(chosen.alpha, full.length - 1);
  const run = full[at];
  byId("matrices-note").textContent = chosen.alpha < full.length ? `Shown: α = ${run.alpha}.` : `Shown: α = ${run.alpha}, the smallest computed here.`;
  const last = full.at(-1).times.at(-1);
  const escape = RECORD.matrices.escape;
  const mark = { type: "line", yref: "paper", x0: escape, x1: escape, y0: 0, y1: 1, line: { color: colours.null, width: 1, dash: "dot" } };
  const losses = full.map((one, place) => lineOf(one.times, one.losses, place === at
    ? { color: colours.accent, width: 2.5 } : { color: colours.null, width: 1 }, { opacity: place === at ? 1 : 0.45, ...labelled(`α = ${one.alpha}`) }));
  losses.push(losses.splice(at, 1)[0]);
  draw("full-loss", losses, { x: "t / log(1/α)", y: "", range: extent(full.map((one) => one.losses)), xrange: [0, last], shapes: [mark] });
  for (const [id, name] of [["full-query-key", "QK"], ["full-value-output", "OV"]]) {
    const teacher = RECORD.matrices.teacher[name].map((value) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: colours.line, width: 1, dash: "dot" },
    }));
    draw(id, run.values[name].map((values, place) => lineOf(run.times, values, { color: HUES[place % HUES.length], width: 2 }, labelled(`σ${place + 1}`))), {
      x: "t / log(1/α)", y: "", xrange: [0, last], range: extent(full.flatMap((one) => one.values[name])), shapes: [...teacher, mark],
    });
  }
}

function drawPerturbed() {
  for (const kind of ["plateaus", "activations"]) {
    RECORD.diagonal.perturbations[kind].forEach((episode, place) => {
      const id = `${kind}-${place}`;
      if (!byId(id)) {
        byId(kind).append(element("figure", {}, element("figcaption", {}, `from time ${number(episode.time, 5)}; apart at the end by ${number(episode.distance, 2)}`),
          element("div", { class: "small", id })));
      }
      const x = curve(episode.times);
      const before = episode.unperturbed.map(curve);
      const after = episode.perturbed.map(curve);
      const traces = episode.coordinates.flatMap((coordinate, at) => {
        const color = order.includes(coordinate) ? hueOf(coordinate) : theme().null;
        return [lineOf(x, before[at], { color, width: 1.2, dash: "dash" }), lineOf(x, after[at], { color, width: 1.8 }, labelled(`product ${coordinate}`))];
      });
      draw(id, traces, { x: "t / log(1/α)", y: "", range: extent([...before, ...after]), xrange: extent([x]) });
    });
  }
}

const decayed = RECORD.decay.runs.map((run) => ({
  ...run, times: curve(run.times), imbalance: curve(run.imbalance), law: curve(run.law), gap: curve(run.gap), values: run.values.map(curve),
}));

function drawDecay() {
  const colours = theme();
  const run = decayed[chosen.decay];
  // Below this, float64 rounding is all that is left of either.
  const [low, high] = [1e-12, 30];
  const shown = (list) => list.map((one) => (one > low / 10 ? one : null));
  const bundle = (key) => {
    const lines = decayed.map((one, at) => lineOf(one.times, shown(one[key]), at === chosen.decay
      ? { color: colours.accent, width: 2.5 } : { color: colours.null, width: 1 }, { opacity: at === chosen.decay ? 1 : 0.35, ...labelled(`λ = ${one.decay}`) }));
    lines.push(lines.splice(chosen.decay, 1)[0]);
    return lines;
  };
  const over = { x: "time (steps × rate)", y: "", log: true, range: [low, high], xrange: [0, run.times.at(-1)] };
  draw("gap", bundle("gap"), over);
  draw("imbalance", [...bundle("imbalance"), lineOf(run.times, shown(run.law), { color: colours.ink, width: 1.2, dash: "dash" })], over);
  const lambdas = decayed.map((one) => one.decay);
  const ends = RECORD.decay.target.flatMap((target, place) => [
    lineOf([0, 2 * target, lambdas.at(-1)], [target, 0, 0], { color: HUES[place], width: 1.2 }),
    { type: "scatter", mode: "markers", x: lambdas, y: decayed.map((one) => one.end[place]), marker: { color: HUES[place], size: lambdas.map((one) => (one === run.decay ? 11 : 6)) },
      hovertemplate: "λ = %{x}: %{y:.4g}<extra></extra>" },
  ]);
  const here = { type: "line", yref: "paper", x0: run.decay, x1: run.decay, y0: 0, y1: 1, line: { color: colours.null, width: 1, dash: "dot" } };
  draw("against-decay", ends, { x: "λ", y: "", range: [-0.05, 1.05], xrange: [-0.05, lambdas.at(-1) + 0.05], shapes: [here] });
  const predicted = run.predicted.map((value, place) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: HUES[place], width: 1, dash: "dot" },
  }));
  draw("values", run.values.map((values, place) => lineOf(run.times, values, { color: HUES[place], width: 2 }, labelled(`σ${place + 1}`))), {
    x: "time (steps × rate)", y: "", range: [-0.05, Math.max(1.1, ...decayed[0].values[0]) + 0.05], xrange: [0, run.times.at(-1)], shapes: predicted,
  });
}

function showAlpha() {
  byId("alpha-name").textContent = `α = ${runs[chosen.alpha].alpha}`;
  drawDiagonal();
  fillStages();
  drawMatrices();
}

function showDecay() {
  byId("decay-name").textContent = `λ = ${decayed[chosen.decay].decay}`;
  drawDecay();
}

function drawAll() {
  showAlpha();
  drawPerturbed();
  showDecay();
}

function start() {
  for (const [name, show] of [["alpha", showAlpha], ["decay", showDecay]]) {
    byId(name).addEventListener("input", (event) => {
      chosen[name] = Number(event.target.value);
      show();
    });
    byId(name).form.addEventListener("submit", (event) => event.preventDefault());
  }
  drawAll();
  let wide = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== wide) drawAll();
    wide = window.innerWidth;
  });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) window.matchMedia(query).addEventListener("change", drawAll);
}

try {
  start();
} finally {
  document.body.classList.add("drawn");
}
