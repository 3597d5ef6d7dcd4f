// Server-sent events over fetch, because EventSource can send no Authorization header.
const KEY = "gateway-operator-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};
export const headers = () => (key.get() ? { authorization: `Bearer ${key.get()}` } : {});

async function read(answer, show) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) if (event.startsWith("data: ")) show(JSON.parse(event.slice(6)));
  }
}

// Follows the stream for ever; `state` hears of "live", "lost", "key" (asks for one) and "closed".
export async function follow(show, state) {
  for (let wait = 500; ; wait = Math.min(wait * 2, 10000)) {
    try {
      const answer = await fetch("/gateway/events", { headers: headers(), cache: "no-store" });
      if (answer.status === 401) return state("key");
      if (answer.status === 403) return state("closed");
      if (answer.ok) {
        state("live");
        wait = 250;
        await read(answer, show);
      }
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof DOMException)) throw error; // what a lost connection raises
    }
    state("lost");
    await new Promise((done) => setTimeout(done, wait));
  }
}
