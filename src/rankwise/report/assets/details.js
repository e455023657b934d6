"use strict";
// The panel of one head: its spectrum, its numbers with their errors, and where they come from.

const colourOfKind = (kind, colours) => (isAttention(kind) ? colours[kind] : colours.other);

/** "layer 3 · head 5 · QK" or the name of a matrix, for a title, a hover or a screen reader. */
function nameOf(site, head) {
  if (!isAttention(site.kind)) return site.name + (site.heads.length > 1 ? ` · head ${head.head}` : "");
  return [site.layer === null ? null : `layer ${site.layer}`, `head ${head.head}`, site.kind.toUpperCase()].filter(Boolean).join(" · ");
}

function row(name, ...cells) {
  return element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell)));
}

/** A word of a record with what it means, where the page knows it. */
const explained = (words, name) => (Object.hasOwn(words, name) ? `${name}: ${words[name]}` : name);

/** What random factors would give for a quantity of this head, at its own scale. */
function nullOf(view, site, head, quantity, scales) {
  const pair = unitNull(view, site, quantity);
  if (!pair || !scales) return pair;
  return head.scale === null ? null : [pair[0] * head.scale, pair[1] === null ? null : pair[1] * head.scale];
}

function measuresTable(data, view, site, head) {
  const found = data.quantities.map((quantity, at) => ({ quantity, value: head.measured[at], random: nullOf(view, site, head, at, quantity.scales) }))
    .filter((one) => one.value);
  const against = found.some((one) => one.random);
  const body = element("tbody", {}, ...found.map(({ quantity, value, random }) => row(
    element("span", { class: "told", title: `${quantity.formula}\n${quantity.meaning}` }, quantity.title), withError(value),
    ...(against ? [random ? withSpread(random) : "–"] : []))));
  const names = ["measure", "value ± error bound", ...(against ? ["random ± spread"] : [])].map((name) => element("th", { scope: "col" }, name));
  return element("table", { class: "plain numbers" }, element("thead", {}, element("tr", {}, ...names)), body);
}

function balanceTable(site, head) {
  const body = element("tbody");
  const add = (title, part, total) => {
    if (!part) return;
    body.append(row(title, number(part.half_sum), number(total), number(part.gap, 3), percent(part.relative)));
  };
  add("this head", head.balance, head.balance?.nuclear);
  add("sum of its rotary pairs", head.pairs, head.pairs?.pair_sum);
  if (site.group.length) {
    const size = site.heads.length / site.group.length;
    const at = Math.floor(site.heads.indexOf(head) / size);
    add(`its group, heads ${at * size}–${(at + 1) * size - 1}`, site.group[at], site.group[at]?.nuclear);
  }
  if (!body.children.length) return null;
  const names = ["balance", "half-sum", "nuclear norm", "gap", "relative"].map((name) => element("th", { scope: "col" }, name));
  return element("table", { class: "plain numbers" }, element("thead", {}, element("tr", {}, ...names)), body);
}

function factsTable(site, head) {
  const facts = [
    ["shape", site.widths.join(" × ")],
    ["method", explained(DATA.words.methods, head.method)],
    ["certificate", site.widths.length === 2 ? "none needed: a single matrix, as stored" : explained(DATA.words.certificates, site.certified)],
    ["orientation", site.orientation],
    ["layout", site.layout],
    ["rotary", site.rotary],
    ["parameters", site.parameters.join(", ")],
    ...site.notes.map((note) => ["note", note]),
  ];
  return element("table", { class: "plain facts" }, element("tbody", {}, ...facts.filter((fact) => fact[1]).map((fact) => row(...fact))));
}

/** One honest sentence about the error bars and the thinning of a spectrum. */
function captionOf(head, random, change) {
  const parts = [];
  const errors = unpack(head.errors);
  const largest = Math.max(...errors);
  if (Number.isFinite(largest) && head.largest) {
    const small = largest < 2e-3 * head.largest[0] ? ", smaller than the markers" : "";
    parts.push(`Error bars: at most ${bound(largest)}${small}.`);
  }
  if (errors.length < head.count) parts.push(`${errors.length} of ${head.count} values are drawn.`);
  if (random && head.scale) {
    parts.push(`Band: 1\u00a0% to 99\u00a0% of ${random.draws} random products of this shape at ${change ? "the change's" : "this head's"} scale; dashed: their mean.`);
  } else if (!change) parts.push("There is no random null for this spectrum.");
  return parts.join(" ");
}

/** Fill the panel; returns where the spectrum is to be drawn, or null if the head has none. */
function fillPanel(panel, data, view, siteAt, headAt, { log, onLog, onPick }) {
  const site = view.sites[siteAt];
  const head = site.heads[headAt];
  const random = site.null === null ? null : view.nulls[site.null];
  const twin = view.sites.findIndex((other) => other.layer === site.layer && other.kind !== site.kind
    && other.name.slice(0, -3) === site.name.slice(0, -3) && isAttention(other.kind) && other.heads.length > headAt);
  const found = findingsOf(view, siteAt, headAt);
  const title = element("h3", { id: "panel-title" }, (data.change ? "Change of " : "") + nameOf(site, head));
  const twinButton = element("button", { type: "button" }, twin < 0 ? "" : `${view.sites[twin].kind.toUpperCase()} of this head`);
  twinButton.addEventListener("click", () => onPick(twin, headAt));
  const scaleButton = (name, value) => {
    const button = element("button", { type: "button", "aria-pressed": String(log === value) }, name);
    button.addEventListener("click", () => onLog(value));
    return button;
  };
  const plot = head.count && head.failure === null ? element("div", { class: "spectrum", id: "spectrum" }) : null;
  const reason = head.failure ?? (head.count ? null : "its spectrum was not asked for: add it with --select");
  panel.replaceChildren(
    element("header", {}, title, element("code", {}, isAttention(site.kind) ? site.name : site.kind), twin < 0 ? null : twinButton,
      plot && element("span", { class: "toggle", role: "group", "aria-label": "scale of singular values" }, scaleButton("log", true), scaleButton("linear", false)),
      plot && saveButton(plot, `rankwise-${site.name}-${head.head}`)),
    ...found.map((one) => element("p", { class: "finding", "data-kind": one.kind }, element("b", {}, one.kind), ` ${one.text}`)),
    element("div", { class: "columns" },
      element("div", {}, plot ?? element("p", { class: "no-spectrum" }, `No spectrum: ${reason}`),
        plot && element("p", { class: "quiet" }, captionOf(head, random, data.change)), element("div", { id: "course" }), factsTable(site, head)),
      element("div", {}, measuresTable(data, view, site, head), balanceTable(site, head))),
  );
  return plot;
}
