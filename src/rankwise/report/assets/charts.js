"use strict";
// The three charts: heatmap, spectrum, scatter. Each draws from data alone and keeps no state.

// Viridis: even in lightness, and readable with any kind of colour vision.
const COLOURS = ["#440154", "#482777", "#3f4a8a", "#31678e", "#26838f", "#1f9d8a", "#6cce5a", "#b6de2b", "#fee825"];
const SCALE = COLOURS.map((colour, at) => [at / (COLOURS.length - 1), colour]);
const CONFIG = { displaylogo: false, displayModeBar: false, responsive: false };

function layoutOf(colours, width, height, margin, more) {
  return {
    width, height, margin, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colours.muted }, showlegend: false, dragmode: false, hovermode: "closest",
    hoverlabel: { bgcolor: colours.surface, bordercolor: colours.line, font: { color: colours.ink, size: 12 }, align: "left" },
    ...more,
  };
}

function axisOf(colours, title, more) {
  return {
    title: { text: title, font: { color: colours.muted, size: 12 }, standoff: 6 }, gridcolor: colours.line, linecolor: colours.line,
    zeroline: false, fixedrange: true, tickfont: { color: colours.muted, size: 11 }, ...more,
  };
}

/** Ticks of a logarithmic axis: powers of ten, or 1-2-5 where few of those are in sight. */
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const every = Math.max(1, Math.ceil(decades / 9));
  const digits = decades > 2.5 ? [1] : decades > 1.3 ? [1, 2, 5] : decades > 0.5 ? [1, 1.5, 2, 3, 5, 7] : [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9];
  const powers = Array.from({ length: Math.ceil(decades) + 2 }, (_, at) => Math.floor(Math.log10(low)) + at).filter((power) => power % every === 0);
  const tickvals = powers.flatMap((power) => digits.map((digit) => digit * 10 ** power)).filter((one) => one >= low && one <= high);
  const text = (one) => (one >= 1e-3 && one < 1e6 ? number(one) : number(one / 10 ** Math.floor(Math.log10(one) + 1e-9)) + "·10<sup>" + number(Math.floor(Math.log10(one) + 1e-9)) + "</sup>");
  return { tickmode: "array", tickvals, ticktext: tickvals.map((one) => text(one).replace(/^1·/, "")) };
}

/** About `most` labels of a list that read 0, 5, 10, ... */
function someTicks(labels, most) {
  const step = [1, 2, 4, 5, 8, 10, 16, 20, 50, 100].find((one) => labels.length / one <= most) ?? Math.ceil(labels.length / most);
  const at = labels.map((_, index) => index).filter((index) => index % step === 0);
  return { tickmode: "array", tickvals: at, ticktext: at.map((index) => plotText(labels[index])) };
}

/** How large the cells of a map may be in so much room. */
function cellSize(map, room, words) {
  const left = 44;
  const longest = words ? Math.max(...map.columns.map((label) => label.length)) : 0;
  const cell = Math.max(words ? 20 : 7, Math.min(words ? 64 : 88, Math.floor((room - left - 8) / map.columns.length)));
  const row = Math.max(7, Math.min(28, cell, Math.floor(900 / map.rows.length)));
  const width = left + 8 + cell * map.columns.length;
  const margin = { l: left, r: words ? Math.min(120, longest * 4) : 8, t: 4, b: words ? 24 + Math.min(180, longest * 5) : 36 };
  return { cell, row, margin, width: width - 8 + margin.r, height: margin.t + margin.b + row * map.rows.length };
}

/** The outline of a selected cell `[row, column]`, none for null. */
function outlineOf(cell) {
  const colours = theme();
  return cell === null ? [] : [0, 1].map((inner) => ({
    type: "rect", layer: "above", x0: cell[1] - 0.5, x1: cell[1] + 0.5, y0: cell[0] - 0.5, y1: cell[0] + 0.5,
    line: { color: inner ? colours.ink : colours.surface, width: inner ? 2.5 : 6 },
  }));
}

/**
 * Draw a map. `valueOf(site, head)` is the number behind a colour, `hoverOf` its words; `range` is `{low, high, log}`;
 * `marks` are cells with a finding.
 */
function drawHeatmap(target, map, { room, range, valueOf, hoverOf, isFailed, isMarked, selected }) {
  const colours = theme();
  const words = map.column_name === "matrix";
  const size = cellSize(map, room, words);
  const blank = () => map.rows.map(() => Array(map.columns.length).fill(null));
  const [z, text, under] = [blank(), blank(), blank()];
  const hatch = { x: [], y: [] };
  const marks = { x: [], y: [] };
  for (const [row, column, site, head] of map.cells) {
    const value = valueOf(site, head);
    const usable = value !== null && (!range.log || value > 0);
    text[row][column] = hoverOf(site, head);
    if (usable) z[row][column] = range.log ? Math.log10(value) : value;
    else under[row][column] = 1;
    if (isFailed(site, head)) {
      hatch.x.push(column - 0.5, column + 0.5, column + 0.5, column - 0.5, null);
      hatch.y.push(row - 0.5, row - 0.5, row + 0.5, row + 0.5, null);
    }
    if (isMarked(site, head)) {
      marks.x.push(column);
      marks.y.push(row);
    }
  }
  const gap = size.row >= 12 ? 2 : size.row >= 9 ? 1 : 0.5;
  const grid = { type: "heatmap", x: map.columns.map((_, at) => at), y: map.rows.map((_, at) => at), showscale: false };
  const hover = { xgap: gap, ygap: gap, text, hovertemplate: "%{text}<extra></extra>", hoverongaps: false };
  const ends = range.log ? [Math.log10(range.low), Math.log10(range.high)] : [range.low, range.high];
  const traces = [
    { ...grid, ...hover, z: under, colorscale: [[0, colours.missing], [1, colours.missing]], zmin: 0, zmax: 1 },
    { ...grid, ...hover, z, colorscale: SCALE, zmin: ends[0], zmax: ends[1] },
    { type: "scatter", mode: "lines", ...hatch, fill: "toself", line: { width: 0 }, hoverinfo: "skip",
      fillcolor: "rgba(0,0,0,0)", fillpattern: { shape: "/", size: 6, solidity: 0.25, fgcolor: colours.muted } },
    { type: "scatter", mode: "markers", ...marks, hoverinfo: "skip",
      marker: { symbol: "circle", size: Math.max(3, size.row * 0.3), color: "#ffffff", line: { color: "#000000", width: 1 } } },
  ];
  const axis = { showgrid: false, ticks: "" };
  const layout = layoutOf(colours, size.width, size.height, size.margin, {
    shapes: outlineOf(selected),
    xaxis: axisOf(colours, words ? "" : map.column_name, {
      ...axis, ...someTicks(map.columns, words ? 1e9 : size.cell * map.columns.length / 22), tickangle: words ? 40 : 0,
      range: [-0.55, map.columns.length - 0.45],
    }),
    yaxis: axisOf(colours, "layer", {
      ...axis, ...someTicks(map.rows, size.row * map.rows.length / 16), range: [map.rows.length - 0.45, -0.55],
    }),
  });
  return Plotly.react(target, traces, layout, CONFIG);
}

/** The singular values of one head with their error bounds, before the band, the mean and the edge of random factors. */
function drawSpectrum(target, head, random, { log, colour, width, height }) {
  const colours = theme();
  const values = Array.from(unpack(head.values));
  const errors = Array.from(unpack(head.errors));
  const ranks = plottedRanks(head.count, values.length);
  const scale = head.scale;
  const traces = [];
  let top = values[0];
  let bottom = Math.min(...values.filter((value) => value > 0));
  if (random && scale) {
    const [mean, low, high] = ["values", "low", "high"].map((key) => Array.from(unpack(random[key]), (one) => one * scale));
    const at = ranks.slice(0, mean.length);
    const shown = (list) => list.map((one) => (log && !(one > 0) ? null : one));
    const common = { type: "scatter", mode: "lines", x: at, hoverinfo: "skip" };
    if (mean.length) {
      traces.push(
        { ...common, y: shown(low), line: { width: 0 } },
        { ...common, y: shown(high), line: { width: 0 }, fill: "tonexty", fillcolor: colours.band },
        { ...common, y: shown(mean), line: { color: colours.null, width: 1.5, dash: "dash" } },
      );
      top = Math.max(top, high[0] || 0, random.edge * scale || 0);
      bottom = Math.min(bottom, ...mean.filter((one) => one > 0));
    }
  }
  bottom = Math.max(bottom, top * 1e-8);
  const drawn = values.map((value) => (log && !(value > 0) ? null : value));
  traces.push({
    type: "scatter", mode: "lines+markers", x: ranks, y: drawn, line: { color: colour, width: 2 },
    marker: { color: colour, size: values.length > 160 ? 3 : 5 },
    customdata: errors.map((error) => bound(error)), hovertemplate: "s<sub>%{x}</sub> = %{y:.5g} ± %{customdata}<extra></extra>",
    error_y: {
      type: "data", symmetric: false, array: errors, color: colour, thickness: 1, width: 2,
      // Below zero there is no logarithm: such a bar reaches to the foot of the plot.
      arrayminus: errors.map((error, at) => (log ? Math.min(error, values[at] * 0.999) : error)),
    },
  });
  const edge = random && scale && random.edge ? random.edge * scale : null;
  const shapes = edge === null ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: edge, y1: edge, line: { color: colours.null, width: 1, dash: "dot" } }];
  const annotations = edge === null ? [] : [{
    xref: "paper", x: 1, xanchor: "right", y: log ? Math.log10(edge) : edge, yanchor: "bottom", text: "random edge", showarrow: false,
    font: { color: colours.null, size: 11 },
  }];
  const layout = layoutOf(colours, width, height, { l: 62, r: 14, t: 12, b: 40 }, {
    shapes, annotations,
    xaxis: axisOf(colours, "k, largest first", { range: [1 - head.count * 0.02, head.count * 1.02 + 0.02], showgrid: false }),
    yaxis: axisOf(colours, "singular value s<sub>k</sub>", log
      ? { type: "log", range: [Math.log10(bottom) - 0.15, Math.log10(top) + 0.12], ...logTicks(bottom / 1.4, top * 1.3) }
      : { range: [0, top * 1.08], nticks: 6 }),
  });
  return Plotly.react(target, traces, layout, CONFIG);
}

/** Offer a chart as an SVG file. */
function saveButton(target, filename) {
  const button = element("button", { type: "button", class: "save", title: "Save this chart as SVG" }, "SVG");
  button.addEventListener("click", () => Plotly.downloadImage(target, { format: "svg", filename, width: target.clientWidth, height: target.clientHeight }));
  return button;
}

/** The paper's scatter: `series` of points, each with its colour and symbol, over the lines of random factors. */
function drawScatter(target, series, nulls, { relative, paired, width, height }) {
  const colours = theme();
  const points = series.flatMap((one) => one.points);
  const xs = points.map((point) => point.nuclear);
  const ends = [xs.reduce((a, b) => Math.min(a, b)) / 1.3, xs.reduce((a, b) => Math.max(a, b)) * 1.3];
  const reached = points.map((point) => (relative ? point.relative : point.half_sum)).filter((y) => y > 0).concat(relative ? nulls : ends);
  const heights = [reached.reduce((a, b) => Math.min(a, b)) / (relative ? 1.3 : 1), reached.reduce((a, b) => Math.max(a, b)) * (relative ? 1.3 : 1.1)];
  const line = (y, more) => ({ type: "scatter", mode: "lines", x: ends, y, hoverinfo: "skip", ...more });
  const traces = nulls.map((gap) => line(relative ? [gap, gap] : ends.map((x) => x / (1 - gap)), {
    line: { color: colours.null, width: 1.5, dash: "dash" },
  }));
  if (!relative) traces.unshift(line(ends, { line: { color: colours.ink, width: 1 } }));
  for (const one of series) {
    traces.push({
      type: "scatter", mode: "markers", x: one.points.map((point) => point.nuclear),
      y: one.points.map((point) => (relative ? (point.relative > 0 ? point.relative : null) : point.half_sum)),
      customdata: one.points.map((point) => [point.site, point.head]), text: one.points.map((point) => point.hover),
      hovertemplate: "%{text}<extra></extra>",
      marker: { color: one.colour, symbol: one.symbol, size: one.points.length > 1500 ? 5 : 8, opacity: 0.7, line: { width: 0 } },
    });
  }
  const layout = layoutOf(colours, width, height, { l: 70, r: 14, t: 12, b: 48 }, {
    xaxis: axisOf(colours, paired ? "nuclear norm; for rotary heads the sum over their pairs" : "nuclear norm", { type: "log", range: ends.map(Math.log10), ...logTicks(...ends) }),
    yaxis: axisOf(colours, relative ? "gap / half-sum" : "half-sum", { type: "log", range: heights.map(Math.log10), ...logTicks(...heights) }),
  });
  return Plotly.react(target, traces, layout, CONFIG);
}
