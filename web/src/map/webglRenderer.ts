/** Draws points with WebGL2. Positions are uploaded once; colour and visibility are four bytes per point. */

import { RIM, RING, STATE_BYTES, type Frame, type Pass, type PointRenderer, type Rgb } from "./renderer";

const PALETTE_WIDTH = 256;

const POINT_VERTEX = `#version 300 es
layout(location = 0) in vec2 position;
layout(location = 1) in uvec4 state;
uniform vec4 view;
uniform vec4 sizes;
uniform vec4 opacity;
uniform vec4 colourOfAll;
uniform float rimWidth;
uniform sampler2D palette;
flat out vec4 colour;
flat out float diameter;
flat out float rim;

void main() {
  int kind = int(state.z);
  uint index = state.x | (state.y << 8u);
  vec3 own = texelFetch(palette, ivec2(int(index % ${PALETTE_WIDTH}u), int(index / ${PALETTE_WIDTH}u)), 0).rgb;
  float alpha = opacity[kind];
  colour = vec4(mix(own, colourOfAll.rgb, colourOfAll.a) * alpha, alpha);
  diameter = sizes[kind];
  rim = kind == ${RING} && colourOfAll.a == 0.0 ? rimWidth : 0.0;
  gl_PointSize = ceil(diameter) + 1.0;
  gl_Position = state.w == 0u ? vec4(2.0, 2.0, 2.0, 1.0) : vec4(position * view.xy + view.zw, 0.0, 1.0);
}`;

const POINT_FRAGMENT = `#version 300 es
precision highp float;
flat in vec4 colour;
flat in float diameter;
flat in float rim;
out vec4 pixel;

void main() {
  float away = length(gl_PointCoord - 0.5) * (ceil(diameter) + 1.0);
  float cover = clamp(diameter * 0.5 - away + 0.5, 0.0, 1.0);
  if (rim > 0.0) cover *= clamp(away - diameter * 0.5 + rim + 0.5, 0.0, 1.0);
  pixel = colour * cover;
}`;

const UNIFORMS = ["view", "sizes", "opacity", "colourOfAll", "rimWidth", "palette"] as const;

interface Resources {
  points: WebGLProgram;
  uniforms: Record<(typeof UNIFORMS)[number], WebGLUniformLocation | null>;
  vertices: WebGLVertexArrayObject;
  positions: WebGLBuffer;
  state: WebGLBuffer;
  palette: WebGLTexture;
}

export class WebGLRenderer implements PointRenderer {
  readonly kind = "webgl2";
  private resources: Resources | null;
  private xy: Float32Array<ArrayBuffer> = new Float32Array();
  private states: Uint8Array<ArrayBuffer> = new Uint8Array();
  private paletteKey = "";
  private maxSize = 1;

  /** The context can be lost and restored; `restored` requests a new frame. */
  constructor(private readonly gl: WebGL2RenderingContext, restored: () => void) {
    this.resources = this.create();
    gl.canvas.addEventListener("webglcontextlost", (event) => {
      event.preventDefault();
      this.resources = null;
    });
    gl.canvas.addEventListener("webglcontextrestored", () => {
      this.resources = this.create();
      this.setPositions(this.xy);
      this.setState(this.states);
      restored();
    });
  }

  setPositions(xy: Float32Array<ArrayBuffer>): void {
    this.xy = xy;
    this.upload(this.resources?.positions, xy, this.gl.STATIC_DRAW);
  }

  setState(state: Uint8Array<ArrayBuffer>): void {
    this.states = state;
    this.upload(this.resources?.state, state, this.gl.DYNAMIC_DRAW);
  }

  private upload(buffer: WebGLBuffer | undefined, data: BufferSource, usage: number): void {
    if (buffer === undefined) return;
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, buffer);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, data, usage);
  }

  resize(width: number, height: number): void {
    this.gl.canvas.width = width;
    this.gl.canvas.height = height;
  }

  draw(frame: Frame): void {
    const { gl, resources } = this;
    if (resources === null) return;
    const { width, height } = gl.canvas;
    gl.viewport(0, 0, width, height);
    const [r, g, b] = frame.style.background ?? [0, 0, 0];
    gl.clearColor(r / 255, g / 255, b / 255, frame.style.background === null ? 0 : 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    gl.useProgram(resources.points);
    gl.bindVertexArray(resources.vertices);
    gl.bindTexture(gl.TEXTURE_2D, resources.palette);
    this.setPalette(frame.style.palette);
    const { uniforms } = resources;
    const [scaleX, scaleY] = [(2 * frame.scale) / width, (2 * frame.scale) / height];
    gl.uniform4f(uniforms.view, scaleX, scaleY, (2 * frame.left) / width - 1, 1 - (2 * frame.top) / height);
    gl.uniform1f(uniforms.rimWidth, RIM * frame.ratio);
    for (const pass of frame.passes) this.drawPass(resources, frame, pass);
  }

  finish(): void {
    // A pixel can only be read once everything is drawn; gl.finish() does not wait in browsers.
    this.gl.readPixels(0, 0, 1, 1, this.gl.RGBA, this.gl.UNSIGNED_BYTE, new Uint8Array(4));
  }

  private drawPass(resources: Resources, frame: Frame, pass: Pass): void {
    const { gl } = this;
    const { sizes, opacity } = frame.style;
    const size = sizes.map((one) => Math.min(this.maxSize - 1, (one + pass.grow) * frame.ratio));
    gl.uniform4fv(resources.uniforms.sizes, size);
    gl.uniform4fv(resources.uniforms.opacity, opacity.map((one) => one * pass.opacity));
    const [r, g, b] = pass.colour ?? [0, 0, 0];
    gl.uniform4f(resources.uniforms.colourOfAll, r / 255, g / 255, b / 255, pass.colour === undefined ? 0 : 1);
    if (pass.slots instanceof Uint32Array) {
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, pass.slots, gl.STREAM_DRAW);
      gl.drawElements(gl.POINTS, pass.slots.length, gl.UNSIGNED_INT, 0);
    } else for (const { start, count } of pass.slots) gl.drawArrays(gl.POINTS, start, count);
  }

  private setPalette(palette: Rgb[]): void {
    const key = palette.join(";");
    if (key === this.paletteKey) return;
    this.paletteKey = key;
    const { gl } = this;
    const height = Math.max(1, Math.ceil(palette.length / PALETTE_WIDTH));
    const data = new Uint8Array(4 * PALETTE_WIDTH * height);
    palette.forEach((colour, n) => data.set([...colour, 255], 4 * n));
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, PALETTE_WIDTH, height, 0, gl.RGBA, gl.UNSIGNED_BYTE, data);
  }

  private create(): Resources {
    const { gl } = this;
    this.paletteKey = "";
    this.maxSize = (gl.getParameter(gl.ALIASED_POINT_SIZE_RANGE) as Float32Array)[1] ?? 1;
    const points = program(gl, POINT_VERTEX, POINT_FRAGMENT);
    const vertices = gl.createVertexArray();
    gl.bindVertexArray(vertices);
    const [positions, state] = [gl.createBuffer(), gl.createBuffer()];
    gl.bindBuffer(gl.ARRAY_BUFFER, positions);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 2, gl.FLOAT, false, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, state);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribIPointer(1, STATE_BYTES, gl.UNSIGNED_BYTE, 0, 0);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
    const palette = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, palette);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    const entries = UNIFORMS.map((name) => [name, gl.getUniformLocation(points, name)]);
    return { points, uniforms: Object.fromEntries(entries) as Resources["uniforms"], vertices, positions, state, palette };
  }
}

function program(gl: WebGL2RenderingContext, vertex: string, fragment: string): WebGLProgram {
  const made = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]] as const) {
    const shader = gl.createShader(kind);
    if (shader === null) throw new Error("The graphics context is lost.");
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  if (gl.getProgramParameter(made, gl.LINK_STATUS) !== true && !gl.isContextLost()) {
    const logs = (gl.getAttachedShaders(made) ?? []).map((shader) => gl.getShaderInfoLog(shader));
    throw new Error(`The shaders do not link: ${[gl.getProgramInfoLog(made), ...logs].join(" ").trim()}`);
  }
  return made;
}
