// "Try a request": the decision for a prompt or a whole body, with nothing sent upstream.
import { at, h } from "./dom.js";
import { race } from "./race.js";
import { headers } from "./stream.js";
import { number, percent, t, taskName } from "./text.js";

function body() {
  const text = at("prompt").value;
  if (at("json").checked) return JSON.stringify({ model: at("tryModel").value, ...JSON.parse(text) });
  const made = { model: at("tryModel").value, messages: [{ role: "user", content: text }] };
  if (at("cap").value) made.max_tokens = Number(at("cap").value);
  return JSON.stringify(made);
}

const fail = (words) => at("told").replaceChildren(h("p", { class: "bad" }, words));

export async function explain() {
  let asked;
  try {
    asked = body();
  } catch (error) {
    return fail(t("badJson") + error.message);
  }
  const answer = await fetch("/gateway/explain", { method: "POST", headers: { "content-type": "application/json", ...headers() }, body: asked }).catch(() => null);
  if (!answer) return fail(t("lost"));
  const told = await answer.json();
  if (!answer.ok) return fail(told.error?.message ?? String(answer.status));
  const { estimate, decision } = told, detail = decision.detail ? ` (${decision.detail})` : "";
  const pools = told.pools.map((pool) => ({ ...pool, seconds: pool.expected_seconds }));
  const own = pools.find((pool) => pool.pool === decision.pool)?.seconds ?? 0;
  const forAll = decision.reason === "faster" && pools.some((pool) => !pool.out && pool.seconds < own);
  at("told").replaceChildren(
    h("p", {}, t("toldLine", taskName(estimate.task), number(estimate.output_tokens), number(estimate.p50), number(estimate.p90), percent(estimate.confidence))),
    h("p", {}, `${t("goes")} `, h("span", { class: `kind ${pools.find((pool) => pool.pool === decision.pool)?.kind ?? ""}` }, decision.pool), ` ${t(forAll ? "r_fleet" : `r_${decision.reason}`)}${detail}`),
    race(pools, decision.pool));
}
