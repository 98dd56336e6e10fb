// Runs before the page inside the frame of a notebook: what the page would ask a server goes as
// messages to the widget around the frame.
{
  // A notebook server takes messages of 10 MiB.
  const BODY_LIMIT = 9 * 2 ** 20;
  const TOO_LARGE = "This change is too large for a notebook: pick fewer samples, or use `thresher view`.";
  const waiting = new Map();
  const streams = [];
  // Another selection opens in a new document, which must not take answers to the one before.
  let last = Math.floor(Math.random() * 2 ** 48);

  window.fetch = async (path, init = {}) => {
    const body = typeof init.body === "string" ? new TextEncoder().encode(init.body) : (init.body ?? null);
    if (body !== null && body.byteLength > BODY_LIMIT) return Response.json({ error: TOO_LARGE }, { status: 413 });
    const id = ++last;
    const answer = await new Promise((resolve) => {
      waiting.set(id, resolve);
      const type = init.headers?.["Content-Type"] ?? "";
      parent.postMessage({ id, path, method: init.method ?? "GET", type, body }, "*");
    });
    return new Response(answer.body, { status: answer.status, headers: { "Content-Type": answer.type } });
  };

  window.EventSource = class {
    constructor() {
      streams.push(this);
      setTimeout(() => this.onopen());
    }

    close() {}
  };

  window.addEventListener("message", ({ source, data }) => {
    if (source !== parent) return;
    if (data.event === undefined) {
      waiting.get(data.id)?.(data);
      waiting.delete(data.id);
    } else if (data.event.startsWith("data: ")) {
      for (const stream of streams) stream.onmessage({ data: data.event.slice("data: ".length) });
    }
  });

  // The content policy blocks images of the network, and they are fetched here.
  document.addEventListener(
    "error",
    async ({ target }) => {
      const path = target instanceof HTMLImageElement ? target.getAttribute("src") : null;
      if (path === null || path.startsWith("blob:")) return;
      const answer = await fetch(path);
      if (!answer.ok) return;
      target.src = URL.createObjectURL(await answer.blob());
      target.onload = () => URL.revokeObjectURL(target.src);
    },
    true,
  );

  window.addEventListener("open-selection", (event) => {
    event.preventDefault();
    parent.postMessage({ open: event.detail }, "*");
  });
}
