// The last results of jobs: see docs/page.md.

import * as api from "./api.js";
import { h } from "./dom.js";
import { ago, duration, number, when } from "./format.js";
import { badge, button, card, confirm, empty, facts, toast } from "./ui.js";

const KINDS = { ok: "good", warning: "warn", failed: "bad", running: "accent" };

export function jobs(app) {
  return {
    title: "Jobs",
    every: 5_000,
    load: (signal) => api.get("leveret/jobs", {}, signal),
    render: (list) => [
      h("h1", null, "Jobs"),
      h("p", { class: "muted" }, "The last result of each job that reports to this cluster, such as those of leveret pipeline."),
      list.length ? h("div", { class: "jobs" }, list.map((job) => show(app, job)))
        : card(null, empty("No results yet", "Jobs report with PUT /api/leveret/jobs/<vhost>/<name>.")),
    ],
  };
}

function show(app, job) {
  const figures = Object.entries(job.figures ?? {});
  return h("section", { class: "card job", key: `${job.vhost}/${job.name}` },
    h("div", { class: "card-head" }, h("h2", null, job.name), badge(job.state, KINDS[job.state] ?? "plain")),
    job.summary ? h("p", { class: "summary" }, job.summary) : null,
    figures.length ? h("dl", { class: "figures" }, figures.map(([name, value]) => h("div", { key: name },
      h("dt", null, name), h("dd", null, typeof value === "number" ? number(value) : String(value))))) : null,
    job.detail ? h("details", null, h("summary", null, "Details"), h("pre", null, job.detail)) : null,
    facts([
      ["Finished", job.finished ? h("span", { title: when(job.finished) }, ago(job.finished)) : null],
      ["Took", job.started && job.finished ? duration((job.finished - job.started) / 1000) : null],
      ["Reported", job.finished ? null : ago(job.reported)],
      ["Report", job.report ? h("code", null, job.report) : null],
      ["Virtual host", job.vhost === "/" ? null : job.vhost],
    ]),
    h("div", { class: "actions" }, button("Forget", () => confirm(`Forget the result of ${job.name}?`, "It appears again when the job reports again.", "Forget",
      async () => {
        await api.del(`leveret/jobs/${api.path(job.vhost, job.name)}`);
        toast(`${job.name} forgotten`);
        app.reload();
      }), "quiet small")));
}
