// Lists: tables with an order and a choice of columns, and pages of lists that the server sorts and filters.

import { h } from "./dom.js";
import { NONE, number } from "./format.js";
import { changed, choose, chosen } from "./state.js";
import { button, empty } from "./ui.js";

// Columns are {title, cell(row), sort, by(row), number, main, wide, end, off}. `sort` names the field by which the server
// sorts. A list that is shown whole is sorted here, by `by`, or by the text of a column that has no numbers. What is wide
// has a line of its own on a phone; an end is an address, which may be broken anywhere; what is off is shown only if somebody chooses it. A list that is paged by the server
// gets its page from `paged`.
export function table(columns, rows, { key, sorted = null, onsort = null, label, picks = null }) {
  columns = columns.map((column) => ({ ...column, by: column.by ?? orderOf(column) }));
  const order = onsort ? { sorted, onsort, rows, field: ({ sort }) => sort } : orderHere(columns, rows, label);
  const cells = (row) => columns.map((column) => {
    const content = column.cell(row) ?? NONE;
    return h("td", { key: column.title, class: classes(column, content), "data-label": column.title }, content);
  });
  const box = h("div", { class: "table-box", role: "region", "aria-label": label, tabindex: "0" }, h("table", null,
    h("thead", null, h("tr", null, picks?.heading(rows), columns.map((column) => heading(column, order.field(column), order)))),
    h("tbody", null, order.rows.map((row) => h("tr", { key: key(row), class: picks?.has(row) ? "picked" : null }, picks?.cell(row), cells(row))))));
  if (onsort || rows.length < ROWS_TO_SORT) return box;
  const fields = columns.filter(({ by }) => by).map(({ title }) => ({ title, sort: title }));
  return [phoneOrder(order.sorted ? fields : [{ title: "in order", sort: "" }, ...fields], order.sorted ?? {}, order.onsort, label.toLowerCase()), box];
}

// Returns by what a column is sorted here if it does not say so.
function orderOf({ title, sort, number: isNumber, cell }) {
  if (!title) return null;
  if (isNumber) return sort ? (row) => valueAt(row, sort) : null;
  return (row) => textOf(cell(row));
}

const valueAt = (row, field) => field.split(".").reduce((found, word) => found?.[word], row);

const ROWS_TO_SORT = 6;  // On a phone a choice of the order is no help with fewer.

// Letters of a title and its value that fit side by side on a phone. Numbers have narrow letters, and stay in one piece.
const LETTERS = 16;
const DIGITS = 22;

function classes({ title, number: isNumber, main, wide, end }, content) {
  const isLong = !main && title && title.length + textOf(content).length > (isNumber ? DIGITS : LETTERS);
  return [isNumber ? "number" : "", main ? "main" : "", wide ? "wide" : "", end ? "end" : "", isLong ? "long" : ""].filter(Boolean).join(" ") || null;
}

// Sorts rows that all are here. The order lasts as long as the page is open.
const orders = new Map();

function orderHere(columns, rows, label) {
  const onsort = (title) => {
    const before = orders.get(label);
    const isNumber = columns.find((column) => column.title === title)?.number ?? false;
    orders.set(label, { by: title, reverse: before?.by === title ? !before.reverse : isNumber });
    changed();
  };
  const sorted = orders.get(label) ?? null;
  const field = ({ title, by }) => (by ? title : null);
  const by = columns.find((column) => column.title === sorted?.by)?.by;
  if (!by) return { sorted, onsort, rows, field };
  const sign = sorted.reverse ? -1 : 1;
  return { sorted, onsort, field, rows: [...rows].sort((one, other) => sign * compare(by(one), by(other))) };
}

// What a description says, as one text.
function textOf(part) {
  if (Array.isArray(part)) return part.map(textOf).join("");
  if (part === null || part === undefined || typeof part !== "object") return String(part ?? "");
  return part.text ?? textOf(part.children);
}

function compare(one, other) {
  if (typeof one === "number" || typeof other === "number") return (one ?? -Infinity) - (other ?? -Infinity) || 0;
  return String(one ?? "").localeCompare(String(other ?? ""), "en", { numeric: true });
}

function heading({ title, number: isNumber }, name, { sorted, onsort }) {
  const props = { key: title, scope: "col", class: isNumber ? "number" : null };
  if (!name) return h("th", props, title);
  const is = sorted?.by === name;
  props["aria-sort"] = is ? (sorted.reverse ? "descending" : "ascending") : "none";
  return h("th", props, h("button", { type: "button", class: "sort", onclick: () => onsort(name) }, title,
    h("span", { "aria-hidden": "true", class: "arrow" }, is ? (sorted.reverse ? "↓" : "↑") : "")));
}

// -- Choice of columns --------------------------------------------------------------------------------------------

let opened = null;  // The list whose menu is open.

// Returns the columns that are shown, and a menu to choose them.
function chosenColumns(columns, label) {
  const name = `columns.${label}`;
  const choice = chosen(name, {});
  const isShown = (column) => column.main || (choice[column.title] ?? !column.off);
  const toggle = (column) => choose(name, { ...choice, [column.title]: !isShown(column) });
  const onMenu = (event) => { opened = event.target.open ? label : opened === label ? null : opened; changed(); };
  const menu = h("details", { class: "choice", key: "columns", ontoggle: onMenu }, h("summary", null, "Columns"), opened !== label ? null : h("div", { class: "choices" },
    columns.filter((column) => !column.main && column.title).map((column) => h("label", { class: "check", key: column.title }, h("input", {
      type: "checkbox", checked: isShown(column), onchange: () => toggle(column) }), column.title)),
    button("As usual", () => choose(name, null), "quiet small")));
  return [columns.filter(isShown), menu];
}

const PAGE_SIZE = 50;

// Returns the parameters of a listing, from the address.
export function asked(app, defaults = {}) {
  const { query } = app;
  return {
    page: query.get("page") ?? 1,
    page_size: PAGE_SIZE,
    name: query.get("name"),
    use_regex: query.has("regex") ? "true" : "false",
    sort: query.get("sort") ?? defaults.sort,
    sort_reverse: query.has("sort") ? String(query.has("desc")) : defaults.reverse ? "true" : "false",
    pagination: "true",
  };
}

// The server answers 400 for a page that no longer exists, after deletions; then the first page is shown.
export async function fetchPage(app, load) {
  try {
    return await load();
  } catch (error) {
    if (error.status !== 400 || Number(app.query.get("page") ?? 1) === 1) throw error;
    app.query.delete("page");
    return load();
  }
}

// Makes a page of a list that came whole, filtered and sorted like the node does for the lists that it pages.
export function pageHere(app, list, defaults = { sort: "name" }) {
  const { page, page_size, name, use_regex: isPattern, sort, sort_reverse: isReverse } = asked(app, defaults);
  const size = defaults.size ?? page_size;
  const fits = name ? matcher(name, isPattern === "true") : () => true;
  const value = (row) => valueAt(row, sort);
  const found = list.filter((row) => fits(row.name)).sort((one, other) => compare(value(one), value(other)));
  if (isReverse === "true") found.reverse();
  const pages = Math.max(1, Math.ceil(found.length / size));
  const at = Math.min(Number(page), pages);
  return { items: found.slice((at - 1) * size, at * size), page: at, page_count: pages, total_count: list.length, filtered_count: found.length };
}

function matcher(wanted, isPattern) {
  const small = wanted.toLowerCase();
  if (!isPattern) return (text) => text.toLowerCase().includes(small);
  try {
    const pattern = new RegExp(wanted, "i");
    return (text) => pattern.test(text);
  } catch (error) {
    if (error instanceof SyntaxError) return () => false;  // It is still being typed.
    throw error;
  }
}

let typing = 0;

// `bulk`: a `Picks` of bulk.js, with which rows can be picked for an action on all of them.
export function paged(app, page, columns, { key, label, what, sort = null, reverse = false, filters = null, none = null, bulk = null }) {
  const { query } = app;
  const sorted = query.has("sort") ? { by: query.get("sort"), reverse: query.has("desc") } : { by: sort, reverse };
  const items = page.items ?? page;
  const [shown, menu] = chosenColumns(columns, label);
  const isFiltered = query.has("name") || query.has("vhost");
  const onsort = (by) => {
    const isSame = sorted.by === by;
    const numbers = columns.find((column) => column.sort === by)?.number;
    app.setQuery({ sort: by, desc: isSame ? !sorted.reverse : numbers ? true : null, page: null });
  };
  const onfilter = (event) => {
    const { value } = event.target;
    clearTimeout(typing);
    typing = setTimeout(() => app.setQuery({ name: value, page: null }), 250);
  };
  return [
    h("div", { class: "filters", role: "search" },
      h("label", { class: "filter" }, h("span", { class: "hidden" }, `Filter ${what} by name`),
        h("input", { type: "search", placeholder: "Filter by name", value: query.get("name") ?? "", oninput: onfilter,
          spellcheck: "false", autocapitalize: "none" })),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: query.has("regex"),
        onchange: (event) => app.setQuery({ regex: event.target.checked, page: null }) }), "Pattern"),
      filters,
      menu,
      phoneOrder(columns.filter(({ sort: field }) => field), sorted, onsort),
      h("span", { class: "count muted" }, counted(page, what))),
    bulk?.bar(page, what),
    items.length ? table(shown, items, { key, sorted, onsort, label, picks: bulk })
      : isFiltered ? empty(`No ${what} match`, "Change or clear the filter.")
        : empty(`No ${what}`, none),
    pager(app, page),
  ];
}

// On a phone there are no headings to sort by. `what`: which list is meant, where a view has several.
function phoneOrder(columns, sorted, onsort, what = null) {
  return h("span", { class: "check phone-only", key: `order ${what}` }, h("select", { "aria-label": what ? `Sort ${what} by` : "Sort by", value: sorted.by ?? "", onchange: (event) => onsort(event.target.value) },
    columns.map(({ title, sort }) => h("option", { value: sort, key: sort, selected: sort === (sorted.by ?? "") }, title))),
  sorted.by ? button(sorted.reverse ? "↓" : "↑", () => onsort(sorted.by), "", { "aria-label": what ? `Turn the order of ${what} round` : "Turn the order round" }) : null);
}

function counted(page, what) {
  const total = page.total_count ?? page.length;
  const of = page.filtered_count === undefined || page.filtered_count === total ? "" : `${number(page.filtered_count)} of `;
  return `${of}${number(total)} ${total === 1 ? what.replace(/s$/, "") : what}`;
}

function pager(app, page) {
  if (!(page.page_count > 1)) return null;
  const at = page.page;
  const to = (number_) => app.setQuery({ page: number_ === 1 ? null : number_ });
  return h("nav", { class: "pager", "aria-label": "Pages" },
    button("← Previous", () => to(at - 1), "", { disabled: at <= 1 }),
    h("span", null, "Page ", h("input", { type: "number", min: 1, max: page.page_count, value: at, "aria-label": "Page",
      onchange: (event) => to(Math.min(Math.max(1, Number(event.target.value) || 1), page.page_count)) }),
      ` of ${number(page.page_count)}`),
    button("Next →", () => to(at + 1), "", { disabled: at >= page.page_count }));
}

// Chooses a vhost, if there are several.
export function vhostFilter(app, vhosts) {
  if (vhosts.length < 2) return null;
  return h("label", { class: "filter" }, h("span", { class: "hidden" }, "Virtual host"),
    h("select", { value: app.query.get("vhost") ?? "", onchange: (event) => app.setQuery({ vhost: event.target.value, page: null }) },
      h("option", { value: "" }, "All virtual hosts"),
      vhosts.map((name) => h("option", { value: name, key: name, selected: name === app.query.get("vhost") }, name))));
}
