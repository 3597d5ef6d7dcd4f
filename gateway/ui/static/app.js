// The page: what comes from the stream is shown once a second, unless paused.
import { canary } from "./canary.js";
import { breakEven, flow, overTime } from "./charts.js";
import { at, bar, h, options } from "./dom.js";
import { explain } from "./explain.js";
import { race } from "./race.js";
import { follow, key } from "./stream.js";
import { clock, language, number, percent, seconds, setLanguage, span, t, taskName } from "./text.js";

const KEPT_POINTS = 600;
let latest = null, points = [], paused = false, state = "wait", shownDecision = null;

const kindsOf = (snapshot) => new Map(snapshot.pools.map((pool) => [pool.pool, pool.kind]));
const heldIn = (pool) => pool.endpoints.reduce((sum, row) => sum + row.held, 0); // of those running: their prompts wait for the engine's turn
const kind = (name) => h("span", { class: `kind ${name}` }, name === "mtp" ? "MTP" : "plain");

function sayState() {
  const told = { live: paused ? "paused" : "live", lost: "lost", wait: "wait", key: "needKey", closed: "closedState" }[state];
  const box = at("status");
  if (box.textContent !== t(told)) box.textContent = t(told);
  box.dataset.state = state === "live" && !paused ? "live" : state === "live" || state === "wait" ? "wait" : "bad";
}

function words() {
  document.documentElement.lang = language();
  for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  const other = language() === "ja" ? "en" : "ja";
  at("language").textContent = other === "ja" ? "日本語" : "English";
  at("language").lang = other;
  at("pause").textContent = t(paused ? "resume" : "pause");
  at("theme").textContent = t(`theme_${document.documentElement.dataset.theme ?? "auto"}`);
  if (!at("prompt").dataset.own) at("prompt").value = t("sample");
  sayState();
}

function tiles(snapshot) {
  const traffic = snapshot.traffic, drafting = snapshot.mtp.filter((row) => row.acceptance);
  const drafts = drafting.reduce((sum, row) => sum + row.acceptance.drafts, 0);
  const mean = (name) => drafting.reduce((sum, row) => sum + row.acceptance[name] * row.acceptance.drafts, 0) / drafts;
  const running = snapshot.pools.reduce((sum, pool) => sum + pool.in_flight, 0), waiting = snapshot.pools.reduce((sum, pool) => sum + pool.waiting, 0), held = snapshot.pools.reduce((sum, pool) => sum + heldIn(pool), 0);
  const net = traffic.saved - traffic.lost;
  const rows = [
    [t("rate"), number(traffic.per_second), t("rateSmall", number(traffic.requests), number(traffic.window))],
    [t("running"), number(running), t("runningSmall", number(waiting)) + (held ? `, ${t("held", number(held))}` : "")],
    [t("ttft"), seconds(traffic.ttft), t("ttftSmall")],
    [t("tokens"), number(traffic.tokens_per_second), ""],
    [t("saved"), traffic.spent ? `${net < 0 ? "−" : ""}${seconds(Math.abs(net))}` : "–", traffic.spent ? t("savedSmall", percent(net / (traffic.spent + Math.max(net, 0)))) : ""],
    [t("accepted"), drafts ? percent(mean("acceptance_rate")) : "–", drafts ? t("acceptedSmall", number(mean("mean_acceptance_length"))) : t("noDraft")],
    [t("failed"), number(traffic.failed), t("failedSmall"), traffic.failed ? "bad" : ""],
  ];
  at("tiles").replaceChildren(...rows.map(([name, value, small, mark]) => h("div", {}, h("dt", {}, name), h("dd", { class: mark ?? "" }, value, h("small", {}, small)))));
}

function endpoint(row) {
  const shut = row.gate !== "open", word = row.draining ? "draining" : row.up && !shut ? "up" : row.gate === "probation" ? "probation" : shut ? "shut" : "down";
  const mark = { up: ["●", "good"], draining: ["◐", "warn"], probation: ["◐", "warn"], shut: ["✕", "bad"], down: ["✕", "bad"] }[word];
  return h("li", {}, h("span", { class: mark[1], "aria-hidden": "true" }, mark[0]), h("span", { title: row.url }, row.url.replace(/^https?:\/\//, "")), h("span", { class: mark[1] === "good" ? "soft" : mark[1] }, `${t(word)} · ${t("load", number(row.in_flight))}${row.held ? `, ${t("heldBehind", number(row.held), number(row.prompt_tokens))}` : ""}`));
}

function draft(report) {
  const found = report.acceptance, parts = [`${t("draft")}${report.tokens}`];
  if (found) parts.push(h("b", {}, ` ${percent(found.acceptance_rate)}`), ` ${t("ofDraft")} `, `(${t("positions")} ${found.position_acceptance_rates.map(percent).join(", ")})`);
  if (report.gain) parts.push(` · ${t("gainOf")} `, h("b", {}, percent(report.gain.tpot_improvement_ratio)));
  const mark = { healthy: "good", unknown: "soft" }[report.state] ?? "bad";
  return h("p", { class: "draft" }, ...parts, " · ", h("span", { class: mark }, t(report.state)));
}

function pools(snapshot) {
  at("pools").replaceChildren(...snapshot.pools.map((pool) => h("div", { class: "pool" },
    h("div", {}, h("h3", {}, pool.pool), kind(pool.kind), h("span", { class: "load" }, t("load", number(pool.in_flight), pool.limit && number(pool.limit)), heldIn(pool) ? `, ${t("held", number(heldIn(pool)))}` : "", pool.waiting ? `, ${t("waiting", number(pool.waiting))}` : "")),
    pool.limit ? bar(pool.in_flight / pool.limit, pool.kind) : null,
    h("ul", {}, pool.endpoints.map(endpoint)),
    snapshot.mtp.filter((report) => report.pool === pool.pool).map(draft))));
}

function flowChart(snapshot) {
  const traffic = snapshot.traffic, total = traffic.flow.reduce((sum, row) => sum + row.requests, 0);
  at("flowHint").textContent = total ? t("flowHint", number(total), span(traffic.flow_window)) : "";
  if (total) return flow(at("flow"), traffic.flow, kindsOf(snapshot));
  const body = JSON.stringify({ model: snapshot.models[0]?.model ?? "MODEL", messages: [{ role: "user", content: "Hello" }] });
  at("flow").replaceChildren(h("p", { class: "empty" }, t("flowEmpty"), h("code", {}, `curl ${location.origin}/v1/chat/completions \\\n  -H 'content-type: application/json' \\\n  -d '${body}'`)));
}

function evenChart(snapshot) {
  const names = snapshot.models.map((model) => model.model);
  options(at("evenModel"), names);
  options(at("tryModel"), names);
  const model = snapshot.models.find((row) => row.model === at("evenModel").value);
  if (!model) return at("even").replaceChildren(h("p", { class: "empty" }, t("evenEmpty")));
  options(at("evenTask"), Object.keys(model.seconds), taskName);
  at("evenHint").textContent = t("evenHint", number(model.prompt));
  breakEven(at("even"), model, at("evenTask").value, kindsOf(snapshot));
}

function overChart(snapshot) {
  const some = points.filter((point) => Object.keys(point.acceptance).length || Object.keys(point.gain).length);
  if (some.length) overTime(at("over"), some, snapshot.policy.acceptance_alert);
  else at("over").replaceChildren(h("p", { class: "empty" }, t("overEmpty")));
}

// Under `fleet` the winner may be slower for the request itself, because it slows the others down less.
const forAll = (row) => row.reason === "faster" && row.pools.some((pool) => !pool.out && pool.seconds < (row.pools.find((own) => own.pool === row.pool)?.seconds ?? 0));
const why = (row) => forAll(row) ? t("r_fleet") : (row.reason === "rule" ? `${t("r_rule")}: ${row.detail}` : row.reason ? t(`r_${row.reason}`) + (row.detail ? ` (${row.detail})` : "") : row.error ?? "");

function decisions(snapshot) {
  const newest = `${snapshot.decisions[0]?.id} ${snapshot.decisions[0]?.at} ${language()}`;
  if (newest === shownDecision) return;
  shownDecision = newest;
  const head = [["c_time"], ["c_task"], ["c_tokens", "n"], ["c_model", "wideOnly"], ["c_pool"], ["c_why"], ["c_race", "wideOnly"], ["c_took", "n"], ["c_end"]];
  at("last").tHead.replaceChildren(h("tr", {}, head.map(([name, mark]) => h("th", { scope: "col", class: mark }, t(name)))));
  const rows = snapshot.decisions.map((row) => h("tr", {},
    h("td", { class: "soft" }, clock(row.at)), h("td", {}, row.task ? taskName(row.task) : "–"),
    h("td", { class: "n" }, row.tokens ?? "–", row.predicted == null ? "" : h("span", { class: "soft" }, ` (${number(row.predicted)})`)),
    h("td", { class: "wideOnly soft" }, row.model ?? "–"),
    h("td", {}, row.pool ? h("span", { class: `kind ${row.pools.find((pool) => pool.pool === row.pool)?.kind ?? ""}` }, row.pool) : "–"),
    h("td", {}, why(row)), h("td", { class: "wideOnly" }, race(row.pools, row.pool)), h("td", { class: "n" }, seconds(row.seconds)),
    h("td", { class: row.result === "ok" ? "good" : row.result.startsWith("client") ? "warn" : "bad" }, t(`e_${row.result}`))));
  at("last").tBodies[0].replaceChildren(...(rows.length ? rows : [h("tr", {}, h("td", { colspan: head.length, class: "soft" }, t("lastEmpty")))]));
}

function policy(snapshot) {
  const live = snapshot.policy, shared = snapshot.state;
  const rows = [
    ["p_source", live.source || "–"], ["p_hash", h("code", {}, live.hash)], ["p_loaded", span(live.loaded_ago)],
    ["p_reload", live.watched ? t("watched", live.reloads) : t("unwatched")], ["p_objective", `${live.objective} (${live.threshold})`],
    ["p_rules", live.rules.join(", ") || t("none")], ["p_state", `${shared.home}, ${t(shared.connected ? "connected" : "lostState")}`], ["p_up", span(snapshot.uptime)],
  ];
  at("policy").replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, t(name)), h("dd", {}, value)]));
  at("problem").hidden = !live.error;
  const problem = live.error ? `${t("invalid")}\n${live.error}` : "";
  if (at("problem").textContent !== problem) at("problem").textContent = problem;
}

function notes(snapshot) {
  const told = [
    snapshot.draining && ["bad", t("n_draining")], snapshot.policy.error && ["bad", t("n_invalid")],
    snapshot.models_without_pool.length && ["bad", t("n_unready", snapshot.models_without_pool.join(", "))],
    !snapshot.state.connected && ["bad", t("n_state")],
    ...snapshot.disagreements.map((found) => ["bad", t("n_differ", found.url, found.pool)]),
    snapshot.processes > 1 && ["", t("replicas", snapshot.processes)],
    snapshot.open && !["127.0.0.1", "localhost", "[::1]"].includes(location.hostname) && ["", t("n_open")],
  ].filter(Boolean);
  const now = told.map((row) => row[1]).join("\n");
  if (at("notes").dataset.now === now) return; // a status region speaks only when it changes
  at("notes").dataset.now = now;
  at("notes").replaceChildren(...told.map(([mark, text]) => h("p", { class: `note ${mark}` }, text)));
}

function draw() {
  if (!latest) return;
  at("version").textContent = latest.version;
  for (const part of [tiles, flowChart, pools, evenChart, overChart, canary, decisions, policy, notes]) part(latest);
}

function show(snapshot) {
  if (snapshot.history) points = snapshot.history;
  points = [...points, snapshot.point].slice(-KEPT_POINTS);
  const first = at("board").hidden;
  at("board").hidden = false;
  at("login").hidden = true;
  if (paused && !first) return;
  latest = snapshot;
  draw();
}

function hear(now) {
  state = now;
  sayState();
  if (now === "key") {
    at("board").hidden = true;
    at("login").hidden = false;
    at("loginError").textContent = key.get() ? t("loginWrong") : "";
    key.set("");
    at("key").focus();
  }
  if (now === "closed") at("notes").replaceChildren(h("p", { class: "note bad" }, t("closed")));
}

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

setTheme(localStorage.getItem("gateway-theme") ?? "auto");
words();
at("theme").addEventListener("click", () => {
  const next = { auto: "light", light: "dark", dark: "auto" }[document.documentElement.dataset.theme ?? "auto"];
  localStorage.setItem("gateway-theme", next);
  setTheme(next);
  words();
});
at("language").addEventListener("click", () => { setLanguage(language() === "ja" ? "en" : "ja"); words(); draw(); });
at("pause").addEventListener("click", () => { paused = !paused; at("pause").setAttribute("aria-pressed", paused); words(); });
at("evenModel").addEventListener("change", draw);
at("evenTask").addEventListener("change", draw);
at("prompt").addEventListener("input", () => { at("prompt").dataset.own = "yes"; });
at("try").addEventListener("submit", (event) => { event.preventDefault(); explain(); });
at("login").addEventListener("submit", (event) => { event.preventDefault(); key.set(at("key").value.trim()); at("key").value = ""; follow(show, hear); });
addEventListener("resize", draw);
follow(show, hear);
