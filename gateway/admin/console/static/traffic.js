// Traffic: the last hour.
import { Chart } from "./chart.js";
import { Head, Panel, Table, Tile, Trouble, count, html, percent, quantile, ratio, seconds, short, useAnswer, useEffect, useLive, useMemo, useState, ask } from "./lib.js";

const HOUR = 360;

const sum = (intervals, of) => intervals.reduce((total, each) => total + of(each), 0);
const merged = (intervals, kind) => {
  const all = {};
  for (const each of intervals) for (const [range, n] of Object.entries(each[kind])) all[range] = (all[range] ?? 0) + n;
  return all;
};
const at = (intervals, kind, q) => quantile(merged(intervals, kind), q);
const answered = (intervals) => sum(intervals, (each) => Object.values(each.answers).reduce((a, b) => a + b, 0));
const failed = (intervals) => sum(intervals, ({ answers }) => (answers["4xx"] ?? 0) + (answers["5xx"] ?? 0));
const hits = (intervals, field) => ratio(sum(intervals, (each) => each[field]), sum(intervals, (each) => each.reported_prompt_tokens));

// Hit rate of one cache of the fleet's size: sampled blocks stand for all.
export function pooled(intervals) {
  const known = intervals.filter((each) => each.pooled?.prompt_tokens).map((each) => each.pooled);
  const total = (field) => sum(known, (each) => each[field]);
  return known.length ? Math.max(0, total("block_tokens") - total("missed_tokens")) / total("prompt_tokens") : null;
}

export function Traffic() {
  const [known, setKnown] = useState(null);
  const [error, setError] = useState(null);
  const take = (data) => setKnown((before) => {
    const all = new Map(before ?? []);
    for (const each of data.intervals) all.set(each.id, each);
    const least = Math.floor(Date.now() / 10_000) - HOUR;
    return new Map([...all].filter(([id]) => id > least).sort((a, b) => a[0] - b[0]));
  });
  useLive("traffic", (topic, data) => take(data));
  useEffect(() => { ask("admin/traffic").then(take).catch(setError); }, []);
  const admission = useAnswer("admin/admission", 5);
  const lines = useMemo(() => linesOf(known), [known]);
  const all = [...(known?.values() ?? [])];
  return html`<${Head} title="Traffic" about="The last hour, in steps of ten seconds." />
    <${Trouble} error=${error} />
    <div class="tiles">
      <${Tile} name="Requests" sub=${`${count(failed(all))} failed, ${percent(ratio(failed(all), answered(all)), 1)}`}>${count(answered(all))}<//>
      <${Tile} name="TTFT p50" sub=${`p90 ${seconds(at(all, "ttft", 0.9))}, p99 ${seconds(at(all, "ttft", 0.99))}`}>${seconds(at(all, "ttft", 0.5))}<//>
      <${Tile} name="Between tokens p50" sub=${`p90 ${seconds(at(all, "itl", 0.9))}`}>${seconds(at(all, "itl", 0.5))}<//>
      <${Tile} name="Hit rate" sub=${`${percent(hits(all, "predicted_cached_tokens"), 1)} predicted`}>${percent(hits(all, "reported_cached_tokens"), 1)}<//>
      <${Tile} name="One cache for all" sub="hit rate with the whole fleet's size">${percent(pooled(all), 1)}<//>
    </div>
    ${!all.length ? html`<p class="empty">There was no traffic within the last hour.</p>` : html`<div class="grid2">
      <${Plot} title="Requests per second" lines=${lines} series=${[["all", "--c1", (e) => answered([e]) / 10], ["failed", "--c4", (e) => failed([e]) / 10]]} show=${(v) => (v === null ? "–" : v.toFixed(v < 10 ? 1 : 0))} />
      <${Plot} title="Tokens per second" lines=${lines} series=${[["prompt", "--c1", (e) => e.prompt_tokens / 10], ["cached", "--c2", (e) => e.reported_cached_tokens / 10], ["output", "--c3", (e) => e.output_tokens / 10]]} show=${short} />
      <${Plot} title="Time to first token" lines=${lines} series=${quantiles("ttft")} show=${seconds} />
      <${Plot} title="Hit rate" about="and that of one cache of the fleet's whole size" most=${1} lines=${lines} series=${[["reported", "--c2", (e) => hits([e], "reported_cached_tokens")], ["predicted", "--c1", (e) => hits([e], "predicted_cached_tokens"), [5, 4]], ["one cache for all", "--c3", (e) => pooled([e]), [2, 3]]]} show=${percent} />
      <${Plot} title="Time between tokens" lines=${lines} series=${quantiles("itl")} show=${seconds} />
      <${Plot} title="Arrival to end" lines=${lines} series=${quantiles("e2e")} show=${seconds} />
    </div>`}
    <div class="grid2"><${Errors} intervals=${all} /><${Queue} admission=${admission.data} /></div>`;
}

const quantiles = (kind) => [["p50", "--c2", (e) => at([e], kind, 0.5)], ["p90", "--c3", (e) => at([e], kind, 0.9)], ["p99", "--c4", (e) => at([e], kind, 0.99)]];

// Every interval that is over, from the first one on, also those in which nothing ended.
function linesOf(known) {
  const ids = [...(known?.keys() ?? [])];
  if (!ids.length) return [];
  const end = Math.max(ids[0] + 1, Math.floor(Date.now() / 10_000));
  return Array.from({ length: end - ids[0] }, (_, i) => [ids[0] + i, known.get(ids[0] + i) ?? null]);
}

const QUIET = { answers: {}, pooled: null, prompt_tokens: 0, output_tokens: 0, reported_prompt_tokens: 0, reported_cached_tokens: 0, predicted_cached_tokens: 0, errors: {}, ttft: {}, itl: {}, e2e: {} };

function Plot({ title, about, series, lines, show, most }) {
  const data = useMemo(() => [lines.map(([id]) => id * 10), ...series.map(([, , of]) => lines.map(([, each]) => of(each ?? QUIET)))], [lines]);
  return html`<${Panel} title=${title} about=${about}><${Chart} title=${title} data=${data} show=${show} most=${most} series=${series.map(([name, color, , dash]) => ({ name, color, dash }))} /><//>`;
}

function Errors({ intervals }) {
  const counts = merged(intervals, "errors");
  const columns = [
    { id: "code", name: "Cause", cell: ([code]) => html`<span class="mono">${code}</span>` },
    { id: "n", name: "Answers", num: true, by: ([, n]) => n, cell: ([, n]) => count(n) },
  ];
  return html`<${Panel} title="Errors by code" about="Answered by the gateway in the last hour"><${Table} caption="Errors by code" columns=${columns} rows=${Object.entries(counts)} keyOf=${([code]) => code} height=${40} initial=${{ id: "n", down: true }} empty="The gateway answered no error." /><//>`;
}

function Queue({ admission }) {
  const rows = (admission?.queues ?? []).flatMap((q) => q.priorities.length ? q.priorities.map((each) => ({ ...each, model: q.model, key: `${q.model} ${each.name}` })) : [{ model: q.model, name: "–", queued_requests: q.queued_requests, queued_prompt_tokens: q.queued_prompt_tokens, key: q.model }]);
  const columns = [
    { id: "model", name: "Model", by: (r) => r.model, cell: (r) => html`<span class="one">${r.model}</span>` },
    { id: "name", name: "Priority", by: (r) => r.name, cell: (r) => r.name },
    { id: "queued", name: "Queued", num: true, by: (r) => r.queued_requests, cell: (r) => count(r.queued_requests) },
    { id: "tokens", name: "Prompt tokens", num: true, by: (r) => r.queued_prompt_tokens, cell: (r) => short(r.queued_prompt_tokens) },
  ];
  const exits = (admission?.queues ?? []).flatMap((q) => Object.entries(q.exits).map(([result, n]) => `${result}: ${count(n)}`)).join(", ");
  return html`<${Panel} title="Queue" about=${exits ? `left it so far: ${exits}` : ""}><${Table} caption="Queue" columns=${columns} rows=${rows} keyOf=${(r) => r.key} height=${40} empty=${admission?.is_enabled ? "Nothing waits." : "Admission control is off."} /><//>`;
}
