/** regl under a content policy that forbids making code from text. */

import createRegl, { type Regl } from "regl";
import { readActives } from "./actives";
import { procedures } from "./regl-procedures";

declare global {
  /** Called by the patched regl (see `vite.config.ts`) in place of `Function`. */
  var reglProcedure: (names: string[], text: string) => (...linked: never[]) => unknown;
  /** Texts that were not found; `tools/regl_procedures.py` reads them to make the table. */
  var reglMissing: Record<string, { names: string[]; text: string }> | undefined;
}

/** What regl-scatterplot draws with; neither of them changes the texts. */
const EXTENSIONS = ["OES_texture_float", "OES_element_index_uint", "WEBGL_color_buffer_float", "EXT_float_blend"];
/** WebGL promises at least this many, and regl writes a loop over all of them into its text. */
const ATTRIBUTES = 8;
const MAX_VERTEX_ATTRIBS = 0x8869;

globalThis.reglProcedure = (names, text) => {
  const key = hash(`${names.join()}\n${text}`);
  const found = procedures[key];
  if (found !== undefined) return found;
  (globalThis.reglMissing ??= {})[key] = { names, text };
  // Refused by the page's policy; allowed only where the table is being made.
  return new Function(...names, text) as (...linked: never[]) => unknown;
};

/**
 * A regl that asks the same of every graphics card, so that its procedures are always the same
 * texts. Throws where WebGL, or floating-point textures, are missing.
 */
export function makeRegl(canvas: HTMLCanvasElement): Regl {
  // The points are smoothed by their own shader.
  const gl = canvas.getContext("webgl", { antialias: false });
  if (gl === null) throw new Error("This browser has no WebGL.");
  const ask = gl.getParameter.bind(gl);
  gl.getParameter = (name: number): unknown => (name === MAX_VERTEX_ATTRIBS ? ATTRIBUTES : ask(name));
  readActives(gl);
  if (gl.getExtension("OES_texture_float") === null) throw new Error("This browser's WebGL has no floating-point textures.");
  return createRegl({ gl, extensions: EXTENSIONS.filter((name) => gl.getExtension(name) !== null) });
}

/** 53 bits are plenty to tell a dozen texts apart. */
function hash(text: string): string {
  let a = 0xdeadbeef;
  let b = 0x41c6ce57;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    a = Math.imul(a ^ code, 2654435761);
    b = Math.imul(b ^ code, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36);
}
