// Words in English and Japanese. A missing word shows its key, so that it is seen.
const EN = {
  skip: "Skip to content", pause: "Pause", paused: "Paused", resume: "Resume", live: "Live", lost: "Reconnecting…", wait: "Connecting…", needKey: "Key needed", closedState: "Closed",
  u_min: "min", u_h: "h", u_d: "d", theme_auto: "Theme: system", theme_light: "Theme: light", theme_dark: "Theme: dark",
  loginTitle: "Operator key", loginText: "This gateway's status is for operators. The key stays in this tab and is sent as an Authorization header.", loginKey: "Key", loginGo: "Show status", loginWrong: "That key does not open the operators' endpoints.",
  closed: "The operators' endpoints are closed: the policy asks clients for keys but has no access.operator_key. Set one to see this page.",
  now: "Now", rate: "Requests per second", rateSmall: (n, w) => `${n} in the last ${w} s`, tokens: "Output tokens per second", failed: "Failed", failedSmall: "back ends, limits, timeouts", saved: "Against the other pool", savedSmall: (p) => `net, ${p} off the same requests in this fleet's best other pool`, acceptance: "acceptance", gain: "gain per token", accepted: "MTP acceptance", acceptedSmall: (n) => `mean length ${n} tokens per step`, noDraft: "nothing drafted yet", ttft: "Time to first token", ttftSmall: "median of the last minute", running: "Running now", runningSmall: (n) => `${n} waiting`,
  flow: "Where requests go", flowHint: (n, w) => `Tasks to pools, ${n} requests of the last ${w}.`, flowEmpty: "No requests in the last five minutes. Send one:",
  pools: "Pools and endpoints", load: (n, limit) => (limit ? `${n} of ${limit} running` : `${n} running`), waiting: (n) => `${n} waiting`, held: (n) => `${n} held for prefill`, heldBehind: (n, tokens) => `${n} held behind ${tokens} prompt tokens`, up: "up", down: "down", draining: "draining", shut: "breaker shut", probation: "on trial", draft: "k = ", ofDraft: "acceptance", positions: "by position", gainOf: "gain per token",
  healthy: "healthy", weak_tail: "weak tail: k is too deep", drifting: "drifting: the drafter does not fit", harmful: "harmful: drafting costs time", unknown: "not yet known",
  even: "Break-even", evenHint: (n) => `Expected time in each pool against output tokens, at the present load, for a prompt of ${n} tokens.`, evenFrom: (n) => `MTP pays from about ${n} token${n === "1" ? "" : "s"}`, evenNever: "MTP does not pay at this load", evenAlways: "MTP is faster at every length", evenOne: "only one kind of pool", besides: "running beside it", evenEmpty: "The policy has no model with pools.",
  over: "Acceptance and gain over time", overHint: "Solid: share of drafted tokens accepted. Dashed: time per token saved against the plain pool. Figures are exact from 200 drafts on.", overEmpty: "No drafting seen yet. It shows once an MTP back end has answered some requests and its /metrics can be read.", alert: (p) => `alert below ${p}`, ago: (x) => `${x} ago`, nowWord: "now",
  last: "Last decisions", lastHint: "Each request's expected time in every pool, and why the winner won. No text of requests is kept.", lastEmpty: "No decisions yet.", c_time: "Time", c_task: "Task", c_tokens: "Tokens (expected)", c_model: "Model", c_pool: "Pool", c_why: "Why", c_race: "Expected time in each pool", c_end: "End", c_took: "Took",
  try: "Try a request", tryHint: "Explains the decision. Nothing is sent to a back end.", prompt: "Prompt, or a whole request body", model: "Model", task: "Task", cap: "max_tokens", asJson: "is a JSON body", explain: "Explain", sample: "Summarise the history of the lighthouse in three paragraphs.", badJson: "This is no JSON: ", toldLine: (task, n, a, b, c) => `${task}, about ${n} output tokens (p50 ${a}, p90 ${b}, confidence ${c})`, goes: "goes to", out: "out: ",
  canary: "Canary policy", canaryHint: (p, hash, w) => `Share ${p}, hash ${hash}. Counted for ${w}, since either policy last changed, in this process.`, k_policy: "Decided by", k_requests: "Requests", k_failed: "Failed", k_mean: "Mean time", k_regret: "Mean regret", k_live: "Live", k_canary: "Canary", k_refused: "refused",
  canaryFlips: (n, of) => `${n} of the canary's ${of} requests would have gone elsewhere under the live policy`, canaryWon: (saved, lost) => `Saved ${saved}, lost ${lost}.`, canaryProblem: (why) => `The canary takes no requests: ${why}`, canaryInvalid: "The canary's file is invalid; the last good one goes on.",
  policy: "Policy", p_source: "Source", p_hash: "Hash", p_loaded: "Live since", p_reload: "Reload", p_objective: "Objective", p_rules: "Rules", p_state: "Shared state", p_up: "Up for", watched: (n) => `file is watched; ${n} reloads`, unwatched: "not from a file", invalid: "The file as it is now is invalid; the last good policy stays in use:", none: "none", replicas: (n) => `${n} processes; figures here are this one's`, connected: "connected", lostState: "lost",
  n_open: "Open to everybody who can reach the port: the policy has no access section.", n_unready: (m) => `No pool can take traffic for ${m}.`, n_invalid: "The policy file is invalid; the last good policy stays in use.", n_state: "Shared state is lost: limits hold per process, and the other processes' load is unknown.", n_draining: "This gateway is stopping.", n_differ: (u, p) => `${u} in ${p} drafts otherwise than the policy says.`,
  r_only_pool: "the model's only pool", r_client: "the client asked for it", r_gate: "the others cannot serve it", r_rule: "rule", r_faster: "finishes first", r_fleet: "least time, the others' counted", r_tie: "equal times; threshold decides", r_threshold: "static threshold", r_sticky: "conversation is cached there", r_spill: "the others are down or full", r_explore: "keeps both speeds known", r_pass_through: "by model only", r_decisions: "label read without decoding",
  e_ok: "ok", e_client_error: "client error", e_client_closed: "client left", e_backend_error: "back end failed", e_truncated: "cut off", e_timeout: "timed out", e_rejected: "rejected",
  t_classification: "classification", t_multiple_choice: "multiple choice", t_extraction: "extraction", t_short_qa: "short answer", t_math: "math", t_code: "code", t_chat: "chat", t_summarization: "summary", t_rewriting: "rewriting", t_translation: "translation", t_long_form: "long form", t_tool_call: "tool call", t_structured_json: "JSON", t_reasoning: "reasoning", t_unknown: "unknown",
};
const JA = {
  skip: "本文へ移動", pause: "一時停止", paused: "一時停止中", resume: "再開", live: "受信中", lost: "再接続中…", wait: "接続中…", needKey: "キーが必要", closedState: "非公開",
  u_min: "分", u_h: "時間", u_d: "日", theme_auto: "テーマ: システム", theme_light: "テーマ: ライト", theme_dark: "テーマ: ダーク",
  loginTitle: "運用者キー", loginText: "このゲートウェイの状態は運用者向けです。キーはこのタブだけに保持され、Authorization ヘッダーで送信されます。", loginKey: "キー", loginGo: "状態を表示", loginWrong: "このキーでは運用者向けエンドポイントを開けません。",
  closed: "運用者向けエンドポイントは閉じています。ポリシーはクライアントにキーを求めますが access.operator_key がありません。設定すると表示できます。",
  now: "現在", rate: "リクエスト/秒", rateSmall: (n, w) => `直近 ${w} 秒で ${n} 件`, tokens: "出力トークン/秒", failed: "失敗", failedSmall: "バックエンド・制限・時間切れ", saved: "他のプールとの差", savedSmall: (p) => `同じ要求を同じ構成の次善プールに送った場合より ${p} 短縮（差引）`, acceptance: "受理率", gain: "トークンあたりの短縮", accepted: "MTP 受理率", acceptedSmall: (n) => `1 ステップ平均 ${n} トークン`, noDraft: "ドラフトはまだありません", ttft: "最初のトークンまで", ttftSmall: "直近 1 分の中央値", running: "実行中", runningSmall: (n) => `待機 ${n} 件`,
  flow: "リクエストの行き先", flowHint: (n, w) => `タスクからプールへ。直近 ${w} の ${n} 件。`, flowEmpty: "この 5 分間にリクエストはありません。試しに送るには:",
  pools: "プールとエンドポイント", load: (n, limit) => (limit ? `実行中 ${n} / ${limit}` : `実行中 ${n}`), waiting: (n) => `待機 ${n}`, held: (n) => `プリフィル待ち ${n}`, heldBehind: (n, tokens) => `プリフィル待ち ${n}（処理中 ${tokens} トークン）`, up: "稼働", down: "停止", draining: "切り離し中", shut: "遮断中", probation: "試行中", draft: "k = ", ofDraft: "受理率", positions: "位置別", gainOf: "トークンあたりの短縮",
  healthy: "良好", weak_tail: "後半が弱い: k が深すぎます", drifting: "ずれ: ドラフターが合っていません", harmful: "有害: ドラフトで遅くなっています", unknown: "まだ不明",
  even: "損益分岐点", evenHint: (n) => `現在の負荷で、出力トークン数に対する各プールの予想時間（プロンプト ${n} トークン）。`, evenFrom: (n) => `約 ${n} トークンから MTP が有利`, evenNever: "この負荷では MTP は有利になりません", evenAlways: "どの長さでも MTP が速い", evenOne: "プールは 1 種類だけです", besides: "件が並行", evenEmpty: "プールを持つモデルがポリシーにありません。",
  over: "受理率と短縮の推移", overHint: "実線: ドラフトのうち受理された割合。破線: プレーンのプールに対するトークンあたりの短縮。200 ドラフトから確かな値になります。", overEmpty: "ドラフトはまだ観測されていません。MTP バックエンドがいくつか応答し、/metrics が読めると表示されます。", alert: (p) => `${p} 未満で警告`, ago: (x) => `${x} 前`, nowWord: "現在",
  last: "最近の決定", lastHint: "各プールでの予想時間と選ばれた理由。リクエストの本文は保存しません。", lastEmpty: "決定はまだありません。", c_time: "時刻", c_task: "タスク", c_tokens: "トークン（予想）", c_model: "モデル", c_pool: "プール", c_why: "理由", c_race: "各プールの予想時間", c_end: "結果", c_took: "所要",
  try: "リクエストを試す", tryHint: "決定を説明します。バックエンドには何も送りません。", prompt: "プロンプト、またはリクエスト本文", model: "モデル", task: "タスク", cap: "max_tokens", asJson: "JSON 本文として扱う", explain: "説明する", sample: "灯台の歴史を三段落で要約してください。", badJson: "JSON ではありません: ", toldLine: (task, n, a, b, c) => `${task}、出力は約 ${n} トークン（p50 ${a}、p90 ${b}、確信度 ${c}）`, goes: "行き先", out: "対象外: ",
  canary: "カナリアポリシー", canaryHint: (p, hash, w) => `割合 ${p}、ハッシュ ${hash}。両ポリシーが今の内容になってからの ${w}、このプロセスの集計。`, k_policy: "決定", k_requests: "リクエスト", k_failed: "失敗", k_mean: "平均時間", k_regret: "平均の損失", k_live: "現行", k_canary: "カナリア", k_refused: "拒否",
  canaryFlips: (n, of) => `カナリアの ${of} 件のうち ${n} 件は、現行ポリシーなら別のプールへ`, canaryWon: (saved, lost) => `短縮 ${saved}、延長 ${lost}。`, canaryProblem: (why) => `カナリアはリクエストを受けていません: ${why}`, canaryInvalid: "カナリアのファイルに誤りがあります。最後に有効だった内容で続けます。",
  policy: "ポリシー", p_source: "ファイル", p_hash: "ハッシュ", p_loaded: "適用から", p_reload: "再読み込み", p_objective: "目的", p_rules: "ルール", p_state: "共有状態", p_up: "稼働時間", watched: (n) => `ファイルを監視中、再読み込み ${n} 回`, unwatched: "ファイルではありません", invalid: "現在のファイルは無効です。最後の有効なポリシーで継続しています:", none: "なし", replicas: (n) => `${n} プロセス。ここの数値はこのプロセスのものです`, connected: "接続中", lostState: "切断",
  n_open: "ポートに届く人なら誰でも使えます。ポリシーに access がありません。", n_unready: (m) => `${m} を処理できるプールがありません。`, n_invalid: "ポリシーファイルが無効です。最後の有効なポリシーで継続しています。", n_state: "共有状態との接続が切れています。制限はプロセスごとになり、他のプロセスの負荷は不明です。", n_draining: "このゲートウェイは停止中です。", n_differ: (u, p) => `${p} の ${u} のドラフト設定がポリシーと異なります。`,
  r_only_pool: "唯一のプール", r_client: "クライアントの指定", r_gate: "他では処理できない", r_rule: "ルール", r_faster: "先に終わる", r_fleet: "他への影響も含め最短", r_tie: "同等のためしきい値で決定", r_threshold: "固定しきい値", r_sticky: "会話のキャッシュがある", r_spill: "他が停止または満杯", r_explore: "速度の把握のため", r_pass_through: "モデルのみで決定", r_decisions: "生成せずにラベルを判定",
  e_ok: "成功", e_client_error: "クライアントエラー", e_client_closed: "クライアント切断", e_backend_error: "バックエンド障害", e_truncated: "途中で切断", e_timeout: "時間切れ", e_rejected: "拒否",
  t_classification: "分類", t_multiple_choice: "選択問題", t_extraction: "抽出", t_short_qa: "短い回答", t_math: "数学", t_code: "コード", t_chat: "会話", t_summarization: "要約", t_rewriting: "書き換え", t_translation: "翻訳", t_long_form: "長文", t_tool_call: "ツール呼び出し", t_structured_json: "JSON", t_reasoning: "推論", t_unknown: "不明",
};
const WORDS = { en: EN, ja: JA };

let lang = localStorage.getItem("gateway-language") ?? (navigator.language.toLowerCase().startsWith("ja") ? "ja" : "en");
if (!(lang in WORDS)) lang = "en";
export const language = () => lang;
export function setLanguage(name) {
  lang = name;
  localStorage.setItem("gateway-language", name);
}
export const t = (key, ...values) => {
  const found = WORDS[lang][key] ?? EN[key] ?? key;
  return typeof found === "function" ? found(...values) : found;
};
export const taskName = (task) => t(`t_${task}`);
const places = (value, digits) => new Intl.NumberFormat(lang, { maximumFractionDigits: digits }).format(value);
export const number = (value) => places(value, Math.abs(value) < 10 ? 1 : 0);
export const percent = (share) => `${places(share * 100, Math.abs(share) < 0.1 ? 1 : 0)}%`;
export const seconds = (value) => (value == null ? "–" : value < 0.0995 ? `${places(value * 1000, value < 0.01 ? 1 : 0)} ms` : value < 1 ? `${places(value * 1000, 0)} ms` : value < 100 ? `${places(value, value < 10 ? 2 : 1)} s` : span(value));
export const span = (value) => (value < 100 ? `${Math.round(value)} s` : value < 5400 ? `${Math.round(value / 60)} ${t("u_min")}` : value < 172800 ? `${places(value / 3600, 1)} ${t("u_h")}` : `${places(value / 86400, 1)} ${t("u_d")}`);
export const clock = (at) => new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }).format(at * 1000);
