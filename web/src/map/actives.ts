/**
 * What a shader program uses, read from its text instead of asked of the graphics driver.
 *
 * Drivers list uniforms in an order of their own and leave out what they could optimise away. regl
 * writes its procedures in that order, so that other drivers would make other texts than those
 * written down in `regl-procedures.js`, and the map would not be drawn there.
 */

const ACTIVE_UNIFORMS = 0x8b86;
const ACTIVE_ATTRIBUTES = 0x8b89;
const TYPES: Record<string, number> = {
  float: 0x1406,
  int: 0x1404,
  bool: 0x8b56,
  vec2: 0x8b50,
  vec3: 0x8b51,
  vec4: 0x8b52,
  mat3: 0x8b5b,
  mat4: 0x8b5c,
  sampler2D: 0x8b5e,
};

type Word = "uniform" | "attribute";

/** Make `gl` answer from the text, by name, what it would ask its driver. */
export function readActives(gl: WebGLRenderingContext): void {
  const ask = gl.getProgramParameter.bind(gl);
  gl.getProgramParameter = (program: WebGLProgram, what: number): unknown => {
    if (what === ACTIVE_UNIFORMS) return used(gl, program, "uniform").length;
    if (what === ACTIVE_ATTRIBUTES) return used(gl, program, "attribute").length;
    return ask(program, what) as unknown;
  };
  gl.getActiveUniform = (program, n) => used(gl, program, "uniform")[n] ?? null;
  gl.getActiveAttrib = (program, n) => used(gl, program, "attribute")[n] ?? null;
}

/** What is declared and used, in the order of the names. A driver ignores values for the rest. */
function used(gl: WebGLRenderingContext, program: WebGLProgram, word: Word): WebGLActiveInfo[] {
  const texts = (gl.getAttachedShaders(program) ?? []).map((shader) => gl.getShaderSource(shader) ?? "");
  const found = new Map<string, WebGLActiveInfo>();
  for (const text of texts) {
    const plain = text.replace(/\/\/.*$/gm, "");
    for (const [, type = "", name = ""] of plain.matchAll(new RegExp(`\\b${word}\\s+(?:(?:low|medium|high)p\\s+)?(\\w+)\\s+(\\w+)\\s*;`, "g"))) {
      const said = plain.match(new RegExp(`\\b${name}\\b`, "g"))?.length ?? 0;
      const known = TYPES[type];
      if (known === undefined) throw new Error(`the shader's type ${type} is not known here`);
      if (said > 1) found.set(name, { name, type: known, size: 1 } as WebGLActiveInfo);
    }
  }
  return [...found.keys()].sort().flatMap((name) => found.get(name) ?? []);
}
