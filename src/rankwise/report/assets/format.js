"use strict";
// Numbers, text and elements. Names from a checkpoint reach the page through textContent and plotText alone.

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text, never HTML. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Plotly reads a few tags and entities in its texts; a name must not be read at all. */
const plotText = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** A number to four significant digits, with a real minus sign. */
function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size < 1e-3 || size >= 1e6) text = value.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e").replace("e+", "e");
  else text = Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 8 });
  return text.replaceAll("-", "−");
}

/** An error bound to one significant digit, rounded up. */
function bound(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  const unit = 10 ** Math.floor(Math.log10(value));
  return number(Math.ceil(value / unit - 1e-9) * unit, 2);
}

/** A value with its error, as many digits as the error leaves. */
function withError(pair) {
  if (!pair || pair[0] === null) return "–";
  return number(pair[0]) + (pair[1] === null ? ", no bound" : ` ±\u00a0${bound(pair[1])}`);
}

/** A null with its spread over random draws. */
const withSpread = (pair) => number(pair[0], 3) + (pair[1] ? ` ±\u00a0${number(pair[1], 1)}` : "");

const percent = (share) => (share === null || share === undefined ? "–" : `${number(100 * share, 2)} %`);

/** Float32 numbers out of base64. */
function unpack(text) {
  return new Float32Array(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
}

/** Which of `count` singular values were kept for plotting, counted from 1: mirrors plotted_ranks of the packing side. */
function plottedRanks(count, kept) {
  if (count <= kept) return Array.from({ length: count }, (_, rank) => rank + 1);
  const head = 64;
  const rest = kept - head;
  return Array.from({ length: kept }, (_, at) =>
    at < head ? at + 1 : head + Math.round(((at - head) * (count - 1 - head)) / (rest - 1)) + 1);
}

/** The values of a CSS custom property and its relatives, as the current theme has them. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "line", "surface", "missing", "accent", "qk", "ov", "other", "null", "band"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
