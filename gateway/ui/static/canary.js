// The canary beside the live policy: how each has done since either last changed, and what the canary sends elsewhere.
import { at, h } from "./dom.js";
import { number, percent, seconds, span, t } from "./text.js";

const share = (arm, of) => (of ? ` (${percent(arm.requests / of)})` : "");
const times = (move, model) => `${model ? `${move.model}: ` : ""}${move.from ?? t("k_refused")} → ${move.to} ${number(move.requests)}`;

export function canary(snapshot) {
  const told = snapshot.canary, box = at("canary");
  box.hidden = !told;
  if (!told) return;
  const beside = told.beside, of = beside.live.requests + beside.canary.requests, table = box.querySelector("table");
  at("canaryHint").textContent = t("canaryHint", percent(told.share), told.hash, span(beside.for_seconds));
  table.tHead.replaceChildren(h("tr", {}, ["k_policy", "k_requests", "k_failed", "k_mean", "k_regret"].map((name, at) => h("th", { scope: "col", class: at ? "n" : null }, t(name)))));
  table.tBodies[0].replaceChildren(...["live", "canary"].map((name) => {
    const arm = beside[name], failed = arm.failed_share;
    return h("tr", {}, h("th", { scope: "row" }, t(`k_${name}`)), h("td", { class: "n" }, number(arm.requests) + share(arm, of)),
      h("td", { class: `n ${failed ? "bad" : ""}` }, failed == null ? "–" : percent(failed)), h("td", { class: "n" }, seconds(arm.mean_seconds)), h("td", { class: "n" }, seconds(arm.mean_regret)));
  }));
  const many = new Set(beside.moves.map((move) => move.model)).size > 1;
  at("canaryFlips").textContent = beside.canary.requests ? `${t("canaryFlips", number(beside.flips), number(beside.canary.requests))}${beside.flips ? `: ${beside.moves.map((move) => times(move, many)).join(", ")}. ${t("canaryWon", seconds(beside.saved), seconds(beside.lost))}` : "."}` : "";
  at("canaryProblem").textContent = told.problem ? t("canaryProblem", told.problem) : told.error ? `${t("canaryInvalid")}\n${told.error}` : "";
}
