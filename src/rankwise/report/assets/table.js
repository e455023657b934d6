"use strict";
// The table of all heads: sorted by any column, filtered by kind and text, shown a piece at a time.

const ROWS_AT_ONCE = 100;

/** One row for each head, with the text that a search looks through. */
function tableRows(view) {
  return view.sites.flatMap((site, siteAt) => site.heads.map((head, headAt) => {
    const found = findingsOf(view, siteAt, headAt).map((one) => one.kind);
    const text = [site.name, site.kind, head.method, site.certified, head.failure ?? "", ...found].join(" ").toLowerCase();
    return { site, head, siteAt, headAt, found, text };
  }));
}

function tableColumns(data, view) {
  const columns = [
    { title: "site", of: (row) => row.site.name, node: (row) => element("code", {}, row.site.name) },
    { title: "head", of: (row) => row.head.head, number: true },
    { title: "kind", of: (row) => row.site.kind },
    { title: "layer", of: (row) => row.site.layer, number: true },
    { title: "stands out", of: (row) => row.found.join(", ") },
    { title: "shape", of: (row) => row.site.widths.join(" × ") },
  ];
  data.quantities.forEach((quantity, at) => {
    if (!view.sites.some((site) => site.heads.some((head) => head.measured[at]))) return;
    columns.push({ title: quantity.title, about: `${quantity.formula}\n${quantity.meaning}`, number: true, of: (row) => row.head.measured[at]?.[0] ?? null,
      hint: (row) => withError(row.head.measured[at]), show: (value) => number(value) });
  });
  columns.push(
    { title: "certified", of: (row) => row.site.certified },
    { title: "method", of: (row) => (row.head.failure === null ? row.head.method : `failed: ${row.head.failure}`) },
  );
  return columns;
}

/** A table that draws itself into the page; `show(view)` gives it another checkpoint. */
function makeTable(data, onPick) {
  let view = data.views.at(-1);
  let sorted = { column: null, down: true };
  let limit = ROWS_AT_ONCE;
  let rows = [];
  let columns = [];

  function visible() {
    const kind = byId("table-kind").value;
    const words = byId("table-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter((row) => (!kind || row.site.kind === kind) && words.every((word) => row.text.includes(word)));
    if (sorted.column === null) return kept;
    const { of } = columns[sorted.column];
    const sign = sorted.down ? -1 : 1;
    const empty = (value) => value === null || value === "";
    return kept.sort((a, b) => {
      const [one, two] = [of(a), of(b)];
      if (empty(one) || empty(two)) return empty(one) - empty(two);
      return sign * (typeof one === "number" ? one - two : one.localeCompare(two, "en", { numeric: true }));
    });
  }

  function header() {
    return element("tr", {}, ...columns.map((column, at) => {
      const direction = sorted.column === at ? (sorted.down ? "descending" : "ascending") : "none";
      const button = element("button", { type: "button", title: column.about }, column.title);
      button.addEventListener("click", () => {
        const fresh = sorted.column !== at;
        sorted = { column: at, down: fresh ? Boolean(column.number) : !sorted.down };
        draw();
        byId("table-scroll").querySelectorAll("thead button")[at].focus();
      });
      return element("th", { scope: "col", "aria-sort": direction, class: column.number ? "number" : null }, button);
    }));
  }

  function line(row) {
    const cells = columns.map((column, at) => {
      const value = column.of(row);
      const content = column.node ? column.node(row) : column.show ? column.show(value) : value === null ? "–" : String(value);
      const cell = element(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: column.number ? "number" : null, title: column.hint?.(row) });
      if (at === 0) {
        const button = element("button", { type: "button" }, content);
        button.addEventListener("click", () => onPick(row.siteAt, row.headAt));
        cell.append(button);
      } else cell.append(content);
      return cell;
    });
    return element("tr", { class: row.head.failure === null ? null : "failed" }, ...cells);
  }

  function draw() {
    const kept = visible();
    const table = element("table", { class: "heads" },
      element("thead", {}, header()), element("tbody", {}, ...kept.slice(0, limit).map(line)));
    byId("table-scroll").replaceChildren(table);
    byId("table-count").textContent = `${Math.min(limit, kept.length).toLocaleString("en")} of ${kept.length.toLocaleString("en")}`
      + (kept.length < rows.length ? `, ${rows.length.toLocaleString("en")} in all` : "");
    byId("table-more").hidden = kept.length <= limit;
  }

  function show(next) {
    view = next;
    rows = tableRows(view);
    columns = tableColumns(data, view);
    if (sorted.column !== null && sorted.column >= columns.length) sorted = { column: null, down: true };
    const kinds = [...new Set(view.sites.map((site) => site.kind))];
    const chosen = byId("table-kind").value;
    byId("table-kind").replaceChildren(element("option", { value: "" }, "all kinds"), ...kinds.map((kind) => element("option", { value: kind }, kind)));
    byId("table-kind").value = kinds.includes(chosen) ? chosen : "";
    draw();
  }

  const again = () => {
    limit = ROWS_AT_ONCE;
    draw();
  };
  byId("table-kind").addEventListener("change", again);
  byId("table-text").addEventListener("input", again);
  byId("table-more").addEventListener("click", () => {
    limit += ROWS_AT_ONCE * 5;
    draw();
  });
  return { show };
}
