/** Points drawn as rings: regl-scatterplot draws discs, so its shaders are given one more word. */

/** The state, in a point's fourth number, that is drawn as a ring. */
export const HOLLOW = 3;
/** Pixels from a ring's outer edge to its hole. */
const RIM = 1.6;

interface Command {
  vert?: string;
  frag?: string;
}

/** The command with rings for points in state `HOLLOW`; commands that draw no points stay. */
export function hollowed<T extends Command>(command: T): T {
  const { vert, frag } = command;
  if (vert === undefined || frag === undefined || !vert.includes("attribute vec2 stateIndex")) return command;
  return {
    ...command,
    vert: put(
      put(vert, "varying float finalPointSize;", "varying float finalPointSize;\nvarying float hollow;"),
      "gl_PointSize = finalPointSize;",
      // Not where points are lit or hovered: those are drawn over the ring.
      `gl_PointSize = finalPointSize;\n  hollow = step(${HOLLOW - 0.5}, state.w) * step(globalState, 0.5) * devicePixelRatio;`,
    ),
    frag: put(
      put(frag, "varying float finalPointSize;", "varying float finalPointSize;\nvarying float hollow;"),
      "gl_FragColor =",
      `float rim = ${(2 * RIM).toFixed(1)} * hollow;\n  alpha *= 1.0 - step(0.5, hollow) * linearstep(finalPointSize - rim, finalPointSize - rim - 1.0, sdf);\n  gl_FragColor =`,
    ),
  };
}

function put(text: string, old: string, now: string): string {
  if (!text.includes(old)) throw new Error(`regl-scatterplot has changed: its shader has no "${old}"`);
  return text.replace(old, now);
}
