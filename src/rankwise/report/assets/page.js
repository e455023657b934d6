"use strict";
// The page: selecting a head, moving through a series, and drawing again what that changes.

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

/** Select a head: the maps outline it, the panel tells it. */
function pick(site, head, { scroll } = { scroll: true }) {
  state.site = site;
  state.head = head;
  history.replaceState(null, "", `#site-${site}-head-${head}`);
  outlineMaps();
  drawPanel();
  const chosen = state.view.sites[site];
  const value = chosen.heads[head].measured[state.quantity];
  byId("said").textContent = `${nameOf(chosen, chosen.heads[head])}: ${value ? `${DATA.quantities[state.quantity].title} ${withError(value)}` : "not measured"}`;
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

/** What a reader should see first: a head that is unlike the others, by its finding or else by the lowest colour. */
function selectFirst() {
  const told = state.view.findings.find((one) => one.site !== null && !["failed", "random", "unchanged"].includes(one.kind));
  const lowest = DATA.quantities.length ? extremes()?.[0] : null;
  const other = state.view.sites.findIndex((site) => site.heads.length);
  if (told) [state.site, state.head] = [told.site, told.head ?? 0];
  else if (lowest) [state.site, state.head] = lowest;
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
  if (!DATA.change) wireBalance();
  byId("step")?.addEventListener("input", (event) => showStep(Number(event.target.value)));
  byId("steps")?.addEventListener("submit", (event) => event.preventDefault());
  selectFirst();
  makeMaps();
  table.show(state.view);
  drawAll();
  pickFromAddress();
  window.addEventListener("hashchange", pickFromAddress);
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
