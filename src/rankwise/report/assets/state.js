"use strict";
// What the page shows: the data of the scan, and what the reader has chosen of it.

const DATA = JSON.parse(byId("data").textContent);

const state = { view: DATA.views.at(-1), quantity: 0, site: null, head: null, log: true, relative: false };

const isAttention = (kind) => kind === "qk" || kind === "ov";
const headOf = (site, head) => state.view.sites[site].heads[head];
const valueOf = (site, head) => headOf(site, head).measured[state.quantity]?.[0] ?? null;
const isFailed = (site, head) => headOf(site, head).failure !== null;

/** The findings about a head, those about its whole site included. */
function findingsOf(view, site, head) {
  if (!view.found) {
    view.found = new Map();
    for (const one of view.findings) view.found.set(one.site, [...(view.found.get(one.site) ?? []), one]);
  }
  return (view.found.get(site) ?? []).filter((one) => one.head === null || one.head === head);
}

/** What random factors of a site's shape would give for a quantity, at unit scale: `[value, spread]` or null. */
function unitNull(view, site, quantity) {
  const pair = site.null === null ? null : view.nulls[site.null].measured[quantity];
  return pair && pair[0] !== null ? pair : null;
}
