// Picking rows of a list, and doing something with all of them after a question that says how many they are.

import { h } from "./dom.js";
import { number } from "./format.js";
import { changed } from "./state.js";
import { ask, button, toast } from "./ui.js";

const AT_ONCE = 4;
const NAMED = 20;  // Rows that the question names.
const PAGE = 500;
export const PICKED_MAX = 10_000;

// The picked rows of one list. `actions`: {title, kind, text, act(row)}; `all(page, size)` loads rows that match the filter.
export class Picks {
  constructor(app, { key, name, actions, all }) {
    Object.assign(this, { app, key, name, actions, all });
    this.rows = new Map();
    this.loading = false;
  }

  has(row) {
    return this.rows.has(this.key(row));
  }

  set(rows, isPicked) {
    for (const row of rows) {
      if (isPicked) this.rows.set(this.key(row), row);
      else this.rows.delete(this.key(row));
    }
    changed();
  }

  heading(rows) {
    const every = rows.length > 0 && rows.every((row) => this.has(row));
    return h("th", { key: "pick", class: "pick-cell", scope: "col" }, h("input", { type: "checkbox", "aria-label": "Pick all of this page", checked: every,
      onchange: () => this.set(rows, !every) }));
  }

  cell(row) {
    return h("td", { key: "pick", class: "pick-cell", "data-label": "Pick" }, h("input", { type: "checkbox", "aria-label": `Pick ${this.name(row)}`,
      checked: this.has(row), onchange: (event) => this.set([row], event.target.checked) }));
  }

  bar(page, what) {
    const count = this.rows.size;
    if (!count) return null;
    const matching = page.filtered_count ?? page.items?.length ?? 0;
    return h("div", { class: "bulk", key: "bulk", role: "group", "aria-label": `Picked ${what}` },
      h("b", null, `${number(count)} picked`),
      this.actions.map((action) => button(`${action.title} …`, () => this.question(action, what), action.kind ?? "")),
      matching > count ? button(this.loading ? "Loading …" : `Pick all ${number(matching)}`, () => this.pickAll(), "quiet", { disabled: this.loading }) : null,
      button("Pick none", () => { this.rows.clear(); changed(); }, "quiet"));
  }

  async pickAll() {
    this.loading = true;
    changed();
    try {
      for (let page = 1; this.rows.size < PICKED_MAX; page += 1) {
        const found = await this.all(page, PAGE);
        for (const row of found.items) this.rows.set(this.key(row), row);
        if (page >= found.page_count) break;
      }
      if (this.rows.size >= PICKED_MAX) toast(`At most ${number(PICKED_MAX)} can be picked at once.`, "bad");
    } catch (error) {
      toast(error.message, "bad");
    }
    this.loading = false;
    changed();
  }

  question(action, what) {
    const rows = [...this.rows.values()];
    const title = `${action.title} ${number(rows.length)} ${rows.length === 1 ? what.replace(/s$/, "") : what}?`;
    ask({
      title,
      text: action.text,
      action: action.title,
      kind: "danger",
      live: async () => h("ul", { class: "matched" }, rows.slice(0, NAMED).map((row) => h("li", { key: this.key(row) }, h("span", { class: "badge" }, this.name(row)))),
        rows.length > NAMED ? h("li", { class: "muted" }, `and ${number(rows.length - NAMED)} more`) : null),
      submit: async () => {
        const failed = await this.run(action, rows);
        const done = rows.length - failed.length;
        if (done) toast(`${action.done} ${number(done)} ${done === 1 ? what.replace(/s$/, "") : what}`);
        if (failed.length) toast(`${number(failed.length)} failed. ${this.name(failed[0].row)}: ${failed[0].error.message}`, "bad");
        this.rows = new Map(failed.map(({ row }) => [this.key(row), row]));
        this.app.reload();
      },
    });
  }

  // Does it to a few rows at a time; returns those for which it failed.
  async run(action, rows) {
    const left = [...rows];
    const failed = [];
    const worker = async () => {
      for (let row = left.shift(); row !== undefined; row = left.shift()) {
        try {
          await action.act(row);
        } catch (error) {
          if (error.status !== 404) failed.push({ row, error });  // What is gone needs nothing.
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    return failed;
  }
}
