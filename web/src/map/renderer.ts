/**
 * What regl-scatterplot draws with: straight into the map's own canvas.
 *
 * Its own renderer goes through a floating-point picture and copies that onto a second canvas, for
 * opacities so small that eight bits would lose them. Ours are not, and the detour costs more than
 * the points.
 */

import type { Regl, Texture2D } from "regl";
import type { createRenderer } from "regl-scatterplot";
import { hollowed } from "./outline";
import { makeRegl } from "./regl";

export type Renderer = ReturnType<typeof createRenderer>;

interface Command {
  vert?: string;
  frag?: string;
  primitive?: string;
  count?: number | (() => number);
}

/** A row of four numbers per point: x, y, colour, state. */
export interface StateTexture {
  data: Float32Array;
  side: number;
}

export class MapRenderer {
  readonly renderer: Renderer;
  /** At most so many points are drawn. */
  limit = Infinity;
  private readonly regl: Regl;
  private texture: Texture2D | null = null;
  private taking: StateTexture | null = null;

  /** Throws where there is no WebGL. */
  constructor(canvas: HTMLCanvasElement) {
    const regl = makeRegl(canvas);
    this.regl = regl;
    const ours = Object.assign((options: Command) => regl(this.limited(hollowed(options)) as never), regl, {
      texture: (options: { data?: unknown }) => this.made(regl, options),
    }) as unknown as Regl;
    this.renderer = rendererOf(canvas, regl, ours);
  }

  /** Let the next texture that the plot makes be of `state`: it is the one of its points. */
  take(state: StateTexture): void {
    this.taking = state;
  }

  /** Send changed colours and states to the card; nothing else of the plot is touched. */
  send(state: StateTexture): void {
    const { data, side } = state;
    this.texture?.subimage({ data, shape: [side, side, 4], type: "float" } as never);
  }

  /** Milliseconds until what was asked for is drawn; the page stands still meanwhile. */
  wait(): number {
    const begun = performance.now();
    // A pixel can only be read back once all is drawn.
    this.regl.read({ x: 0, y: 0, width: 1, height: 1 });
    return performance.now() - begun;
  }

  private limited(command: Command): Command {
    const { count } = command;
    if (typeof count !== "function" || command.primitive !== "points") return command;
    return { ...command, count: () => Math.min(count(), this.limit) };
  }

  private made(regl: Regl, options: { data?: unknown }): Texture2D {
    if (this.taking === null) return regl.texture(options as never);
    this.texture = regl.texture({ ...options, data: this.taking.data } as never);
    this.taking = null;
    return this.texture;
  }
}

function rendererOf(canvas: HTMLCanvasElement, regl: Regl, ours: Regl): Renderer {
  const draws = new Set<() => void>();
  const frame = regl.frame(() => draws.forEach((draw) => draw()));
  let destroyed = false;
  return {
    canvas,
    regl: ours,
    gamma: 1,
    isSupported: true,
    get isDestroyed() {
      return destroyed;
    },
    render: (draw: () => void) => {
      regl.clear({ color: [0, 0, 0, 0], depth: 1 });
      draw();
    },
    // The plot itself sets the size of its canvas, which is this one.
    resize: () => undefined,
    onFrame: (draw: () => void) => {
      draws.add(draw);
      return () => void draws.delete(draw);
    },
    refresh: () => regl.poll(),
    destroy: () => {
      destroyed = true;
      frame.cancel();
      regl.destroy();
    },
  } as Renderer;
}
