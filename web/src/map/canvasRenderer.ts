/**
 * Draws points into the pixels of a 2D canvas.
 *
 * Without a GPU the browser emulates WebGL, at about a microsecond per point. Copying a small mask
 * per point is ten times faster.
 */

import { RIM, RING, STATE_BYTES, type Frame, type Pass, type PointRenderer, type Rgb } from "./renderer";

/** Masks exist for this many positions of a point's centre between pixels, across and down. */
const PHASES = 4;

/** The pixels that a point covers, relative to the one at its centre, and how much of each: 0 to 256. */
interface Mask {
  offsets: Int32Array;
  shares: Uint16Array;
}

/** How points of one state are drawn. */
interface Kind {
  diameter: number;
  rim: number;
  opacity: number;
  /** One per phase, created when it is needed. */
  masks: (Mask | undefined)[];
}

/** What a pass needs besides the points. */
interface Job {
  frame: Frame;
  width: number;
  height: number;
  kinds: Kind[];
  palette: Uint32Array;
  /** Mask of the colour index: 0 gives all points the first colour. */
  colours: number;
}

export class CanvasRenderer implements PointRenderer {
  readonly kind = "canvas";
  private xy = new Float32Array();
  private state = new Uint8Array();
  private image: ImageData | null = null;
  private pixels = new Uint32Array();

  constructor(private readonly context: CanvasRenderingContext2D) {}

  setPositions(xy: Float32Array<ArrayBuffer>): void {
    this.xy = xy;
  }

  setState(state: Uint8Array<ArrayBuffer>): void {
    this.state = state;
  }

  resize(width: number, height: number): void {
    const { canvas } = this.context;
    canvas.width = width;
    canvas.height = height;
    this.image = this.context.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  draw(frame: Frame): void {
    const { image } = this;
    if (image === null) return;
    this.pixels.fill(frame.style.background === null ? 0 : packed(frame.style.background));
    for (const pass of frame.passes) this.drawPass(frame, pass, image.width, image.height);
    this.context.putImageData(image, 0, 0);
  }

  finish(): void {
    // Nothing is under way.
  }

  private drawPass(frame: Frame, pass: Pass, width: number, height: number): void {
    const kinds = frame.style.sizes.map((size, state): Kind => ({
      diameter: (size + pass.grow) * frame.ratio,
      rim: state === RING && pass.colour === undefined ? RIM * frame.ratio : 0,
      opacity: (frame.style.opacity[state] ?? 1) * pass.opacity,
      masks: new Array<Mask | undefined>(PHASES * PHASES).fill(undefined),
    }));
    const colours = pass.colour === undefined ? frame.style.palette : [pass.colour];
    const palette = Uint32Array.from(colours.map(packed));
    const job = { frame, width, height, kinds, palette, colours: pass.colour === undefined ? 0xffff : 0 };
    if (pass.slots instanceof Uint32Array) for (const slot of pass.slots) this.drawSlots(job, slot, slot + 1);
    else for (const { start, count } of pass.slots) this.drawSlots(job, start, start + count);
  }

  /** Draw the slots from `start` to before `end`. */
  private drawSlots(job: Job, start: number, end: number): void {
    const { xy, state, pixels } = this;
    const { width, height, kinds, palette, colours } = job;
    const { scale, left, top } = job.frame;
    for (let slot = start; slot < end; slot++) {
      const at = STATE_BYTES * slot;
      if (state[at + 3] === 0) continue;
      const kind = kinds[state[at + 2] as number] as Kind;
      const x = (xy[2 * slot] as number) * scale + left;
      const y = top - (xy[2 * slot + 1] as number) * scale;
      const reach = kind.diameter / 2 + 2;
      if (!(x > -reach && y > -reach && x < width + reach && y < height + reach)) continue;
      const column = Math.floor(x);
      const row = Math.floor(y);
      const phase = Math.floor((y - row) * PHASES) * PHASES + Math.floor((x - column) * PHASES);
      const mask = (kind.masks[phase] ??= makeMask(kind, phase, width));
      const colour = palette[((state[at] as number) | ((state[at + 1] as number) << 8)) & colours] as number;
      const redBlue = colour & 0xff00ff;
      const green = colour & 0x00ff00;
      const clipped = x < reach || y < reach || x > width - reach || y > height - reach;
      const centre = row * width + column;
      const { offsets, shares } = mask;
      for (let k = 0; k < offsets.length; k++) {
        const offset = offsets[k] as number;
        if (clipped && !isInside(offset, column, row, width, height)) continue;
        const pixel = centre + offset;
        pixels[pixel] = blended(pixels[pixel] as number, redBlue, green, shares[k] as number);
      }
    }
  }
}

/** Whether the pixel at an offset from (column, row) is on the canvas, which is wider than two masks. */
function isInside(offset: number, column: number, row: number, width: number, height: number): boolean {
  const down = Math.round(offset / width);
  const c = column + offset - down * width;
  return c >= 0 && c < width && row + down >= 0 && row + down < height;
}

/** The mask of a disc, or of a ring if it has a rim, with its centre at a phase. */
function makeMask({ diameter, rim, opacity }: Kind, phase: number, width: number): Mask {
  const half = Math.ceil(diameter / 2 + 0.5);
  const centreX = ((phase % PHASES) + 0.5) / PHASES;
  const centreY = (Math.floor(phase / PHASES) + 0.5) / PHASES;
  const offsets: number[] = [];
  const shares: number[] = [];
  for (let row = -half; row <= half; row++) {
    for (let column = -half; column <= half; column++) {
      const distance = Math.hypot(column + 0.5 - centreX, row + 0.5 - centreY);
      let share = clamp(diameter / 2 - distance + 0.5);
      if (rim > 0) share *= clamp(distance - diameter / 2 + rim + 0.5);
      const parts = Math.round(256 * share * opacity);
      if (parts === 0) continue;
      offsets.push(row * width + column);
      shares.push(parts);
    }
  }
  return { offsets: Int32Array.from(offsets), shares: Uint16Array.from(shares) };
}

/** A pixel with `share`/256 of a colour over it; red and blue are mixed at once. */
function blended(under: number, redBlue: number, green: number, share: number): number {
  const rest = 256 - share;
  const rb = ((Math.imul(under & 0xff00ff, rest) + Math.imul(redBlue, share) + 0x800080) >>> 8) & 0xff00ff;
  const g = ((Math.imul(under & 0x00ff00, rest) + Math.imul(green, share) + 0x008000) >>> 8) & 0x00ff00;
  return (0xff000000 | rb | g) >>> 0;
}

/** A pixel of a 2D canvas on little-endian machines, which all browsers run on. */
function packed([r, g, b]: Rgb): number {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function clamp(value: number): number {
  return Math.max(0, Math.min(1, value));
}
