// Policies: the one that decides, those of an A/B test beside each other, and shadows.
import { Bar, Head, Panel, Table, Tile, Trouble, count, html, percent, seconds, short, useAnswer, useLive } from "./lib.js";

const nothing = () => {};

export function Policies() {
  useLive("traffic", nothing);
  const { data, error } = useAnswer("admin/policies");
  if (!data) return html`<${Head} title="Policies" /><${Trouble} error=${error} /><p class="empty">Waiting for the first answer…</p>`;
  const fallbacks = data.fallbacks.reduce((sum, f) => sum + (f.raised ?? 0) + (f.invalid ?? 0) + (f.over_budget ?? 0) + (f.paused ?? 0), 0);
  return html`<${Head} title="Policies" about="Which policy decides, and how others would have decided." /><${Trouble} error=${error} />
    ${data.error ? html`<p class="banner bad" role="alert">The policy fails: ${data.error}</p>` : null}
    ${data.file?.error ? html`<p class="banner bad" role="alert">The latest version of ${data.file.path} is not in use: ${data.file.error}</p>` : null}
    <div class="tiles">
      <${Tile} name="Active policy">${data.policy === "ab" ? "an A/B test" : data.policy}<//>
      <${Tile} name="Decided by least load instead" sub="since a policy failed or was late">${count(fallbacks)}<//>
      <${Tile} name="Decisions not compared" sub="the gateway was busy">${count(data.dropped_decisions ?? 0)}<//>
    </div>
    <${Scores} scores=${data.scores ?? []} /><${Shadows} shadows=${data.shadow ?? []} />
    <${Panel} title="Available policies"><p class="body">${data.available.join(", ")}</p><//>`;
}

function Scores({ scores }) {
  const columns = [
    { id: "name", name: "Policy", by: (s) => s.name, cell: (s) => html`<strong class="one">${s.name}</strong><span class="two">${percent(s.share)} of the sessions</span>` },
    { id: "requests", name: "Requests", num: true, by: (s) => s.requests, cell: (s) => count(s.requests) },
    { id: "errors", name: "Failed", num: true, by: (s) => s.failed_requests, cell: (s) => count(s.failed_requests) },
    { id: "hit", name: "Hit rate", num: true, by: (s) => s.hit_rate, cell: (s) => html`${percent(s.hit_rate, 1)}<${Bar} share=${s.hit_rate ?? 0} label=${`hit rate ${percent(s.hit_rate, 1)}`} />` },
    { id: "p50", name: "TTFT p50", num: true, by: (s) => s.ttft_p50_s, cell: (s) => seconds(s.ttft_p50_s) },
    { id: "p90", name: "TTFT p90", num: true, by: (s) => s.ttft_p90_s, cell: (s) => seconds(s.ttft_p90_s) },
    { id: "predicted", name: "Predicted / measured mean", num: true, cell: (s) => `${seconds(s.predicted_ttft_s)} / ${seconds(s.measured_ttft_s)}` },
    { id: "error", name: "Prediction error", num: true, by: (s) => s.prediction_error, cell: (s) => percent(s.prediction_error) },
  ];
  return html`<${Panel} title="Active policies"><${Table} caption="Active policies" columns=${columns} rows=${scores} keyOf=${(s) => s.name} empty="Their figures are kept during an A/B test, or with a shadow." /><//>`;
}

function Shadows({ shadows }) {
  const columns = [
    { id: "name", name: "Shadow", by: (s) => s.name, cell: (s) => html`<strong class="one">${s.name}</strong>` },
    { id: "compared", name: "Compared", num: true, by: (s) => s.compared, cell: (s) => count(s.compared) },
    { id: "agreed", name: "Same worker", num: true, by: (s) => s.agreement_share, cell: (s) => html`${percent(s.agreement_share)}<${Bar} share=${s.agreement_share ?? 0} label=${`same worker ${percent(s.agreement_share)}`} />` },
    { id: "theirs", name: "Overlap of the shadow", num: true, by: (s) => s.shadow_overlap_tokens, cell: (s) => `${short(s.shadow_overlap_tokens)} tokens` },
    { id: "ours", name: "Overlap of the active policy", num: true, by: (s) => s.active_overlap_tokens, cell: (s) => `${short(s.active_overlap_tokens)} tokens` },
    { id: "failed", name: "Failed", num: true, cell: (s) => count((s.raised ?? 0) + (s.invalid ?? 0) + (s.over_budget ?? 0)) },
  ];
  return html`<${Panel} title="Shadows"><${Table} caption="Shadows" columns=${columns} rows=${shadows} keyOf=${(s) => s.name} empty="No policy runs as a shadow (--policy-shadow)." /><//>`;
}
