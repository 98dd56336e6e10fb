// The page in an output cell: a frame without access to the notebook. Its requests go to the kernel.

function render({ model, el }) {
  // Several views of one widget share its messages: each has ids of its own.
  const view = Math.random().toString(36).slice(2);
  const frame = document.createElement("iframe");
  let selection = "";

  const send = (id, path, method = "GET", type = "", body = null) =>
    model.send({ id: `${view}/${id}`, path, method, type }, undefined, body === null ? [] : [body]);

  const onRequest = ({ source, data }) => {
    if (source !== frame.contentWindow) return;
    if (data.open !== undefined) {
      selection = `&s=${encodeURIComponent(data.open)}`;
      send("frame", "frame");
    } else {
      const path = data.path.startsWith("./api/") ? data.path + selection : data.path;
      send(data.id, path, data.method, data.type, data.body);
    }
  };

  const onMessage = ({ id, status, type, event }, buffers) => {
    const [sender, number] = (id ?? "").split("/");
    if (sender === view && number === "frame") frame.srcdoc = new TextDecoder().decode(buffers[0]);
    else if (sender === view) {
      const { buffer, byteOffset, byteLength } = buffers[0];
      const body = buffer.slice(byteOffset, byteOffset + byteLength);
      frame.contentWindow?.postMessage({ id: Number(number), status, type, body }, "*", [body]);
    } else if (event !== undefined) frame.contentWindow?.postMessage({ event }, "*");
  };

  frame.title = "Thresher: map of a selection";
  frame.sandbox = "allow-scripts allow-forms";
  frame.style.cssText = `border: 0; width: 100%; height: ${model.get("height")}px`;
  window.addEventListener("message", onRequest);
  model.on("msg:custom", onMessage);
  el.append(frame);
  send("frame", "frame");
  return () => {
    window.removeEventListener("message", onRequest);
    model.off("msg:custom", onMessage);
  };
}

export default { render };
