"""Scripts that `benchmarks.page` runs in the browser."""

# Runs before the script of the page: counts draws and uploads of the map's canvas, and times every
# animation frame.
WATCH = """() => {
  const seen = globalThis.seen = {draws: 0, uploads: 0, bytes: 0, spent: 0,
    finish: () => undefined, awaited: null};
  const size = data => data?.byteLength ?? (typeof data === 'number' ? data : 0);
  const getContext = HTMLCanvasElement.prototype.getContext;
  HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
    const context = getContext.call(this, kind, ...more);
    if (context === null || !this.classList.contains('points')) return context;
    const wrap = (name, count) => {
      const call = context[name].bind(context);
      context[name] = (...given) => { count(given); return call(...given); };
    };
    if (kind === '2d') {
      wrap('putImageData', () => { seen.draws++; });
      return context;
    }
    // A pixel can only be read once everything is drawn.
    seen.finish = () => context.readPixels(0, 0, 1, 1, context.RGBA, context.UNSIGNED_BYTE,
      new Uint8Array(4));
    for (const name of ['drawArrays', 'drawElements']) wrap(name, () => { seen.draws++; });
    for (const [name, at] of [['bufferData', 1], ['bufferSubData', 2], ['texImage2D', 8]]) {
      wrap(name, given => { seen.uploads++; seen.bytes += size(given[at]); });
    }
    return context;
  };
  const next = requestAnimationFrame.bind(globalThis);
  globalThis.requestAnimationFrame = action => next(now => {
    const [begun, draws] = [performance.now(), seen.draws];
    action(now);
    const given = performance.now();
    seen.spent += given - begun;
    if (seen.awaited === null || seen.draws === draws) return;
    seen.finish();
    seen.awaited = {given, rastered: performance.now()};
  });
}"""

# Drags the map. The script time of a frame is that of its event listeners and frame callbacks.
PAN = """async frames => {
  const canvas = document.querySelector('canvas.points');
  const box = canvas.getBoundingClientRect();
  const at = (n, kind) => canvas.dispatchEvent(new PointerEvent(kind, {bubbles: true,
    pointerId: 1, clientX: box.x + box.width / 2 + 60 * Math.sin(n / 5),
    clientY: box.y + box.height / 2 + n, buttons: 1}));
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const wheel = new WheelEvent('wheel', {deltaY: -4, bubbles: true, cancelable: true,
    clientX: box.x + box.width / 2, clientY: box.y + box.height / 2});
  at(0, 'pointerdown');
  await frame();
  const script = [];
  const before = {draws: seen.draws, uploads: seen.uploads, bytes: seen.bytes};
  const begun = performance.now();
  for (let n = 1; n <= frames; n++) {
    seen.spent = 0;
    const handed = performance.now();
    at(n, 'pointermove');
    if (n % 2) canvas.dispatchEvent(wheel);
    const handled = performance.now() - handed;
    await frame();
    script.push(handled + seen.spent);
  }
  const spent = performance.now() - begun;
  at(frames, 'pointerup');
  return {script, rate: 1000 * frames / spent, draws: (seen.draws - before.draws) / frames,
    uploads: (seen.uploads - before.uploads) / frames,
    bytes: (seen.bytes - before.bytes) / frames};
}"""

REST = """
  const wait = time => new Promise(done => setTimeout(done, time));
  const rest = async () => {
    await wait(150);
    while (document.querySelector('.map').dataset.thinned) await wait(50);
    await wait(50);
    seen.finish();
  };
"""

# Moves the slider and waits for the frame that shows the preview.
SLIDE = """async shares => {
REST
  const slider = document.querySelector('#share');
  const found = [];
  for (const share of shares) {
    const bytes = seen.bytes;
    const entry = new Promise(done => new PerformanceObserver((list, self) => {
      self.disconnect();
      done({...list.getEntries()[0].detail, ...seen.awaited, painted: performance.now(),
        bytes: seen.bytes - bytes});
      seen.awaited = null;
    }).observe({type: 'measure'}));
    seen.awaited = {};
    slider.value = share;
    slider.dispatchEvent(new Event('input', {bubbles: true}));
    found.push(await entry);
    await rest();
  }
  return found;
}""".replace("REST", REST)

# Hides a class and shows it again, each time until the map is drawn.
HIDE = """async rounds => {
REST
  const box = document.querySelector('.classes input');
  const took = [];
  for (let n = 0; n < rounds; n++) {
    await rest();
    const begun = performance.now();
    box.click();
    while (document.querySelector('.map').dataset.stale) await new Promise(requestAnimationFrame);
    seen.finish();
    took.push(performance.now() - begun);
  }
  return took;
}""".replace("REST", REST)

RENDERER = """() => {
  const gl = document.createElement('canvas').getContext('webgl2');
  const ask = gl.getExtension('WEBGL_debug_renderer_info');
  return gl.getParameter(ask ? ask.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
}"""
