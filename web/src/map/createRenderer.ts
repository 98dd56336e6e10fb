/** Choice of the renderer: WebGL2 on a GPU, else a 2D canvas. */

import { CanvasRenderer } from "./canvasRenderer";
import type { PointRenderer } from "./renderer";
import { WebGLRenderer } from "./webglRenderer";

/** `?graphics=webgl2` and `?graphics=canvas` override the choice; `restored` requests a frame. */
export function createRenderer(canvas: HTMLCanvasElement, restored: () => void): PointRenderer {
  const requested = new URL(location.href).searchParams.get("graphics");
  if (requested === "webgl2" || (requested !== "canvas" && hasGpu())) {
    const gl = canvas.getContext("webgl2", { antialias: false, depth: false });
    if (gl !== null) return new WebGLRenderer(gl, restored);
  }
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("This browser has neither WebGL2 nor a 2D canvas.");
  return new CanvasRenderer(context);
}

/** Whether WebGL2 runs on a GPU and is not emulated. */
function hasGpu(): boolean {
  // A canvas with a WebGL context cannot become a 2D canvas, so this uses another one.
  const gl = document.createElement("canvas").getContext("webgl2", { failIfMajorPerformanceCaveat: true });
  if (gl === null) return false;
  const names = gl.getExtension("WEBGL_debug_renderer_info");
  const name = String(gl.getParameter(names === null ? gl.RENDERER : names.UNMASKED_RENDERER_WEBGL));
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return !/swiftshader|llvmpipe|softpipe|software|basic render/i.test(name);
}
