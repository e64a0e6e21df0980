"use strict";
// Draws geoms with WebGL: one light, shadows on level ground, a checker, and fog towards the horizon.

const VERTEX = `#version 300 es
in vec3 position;
in vec3 normal;
uniform mat4 model, view;
out vec3 world, local, facing;
void main() {
  local = position;
  vec4 place = model * vec4(position, 1.0);
  world = place.xyz;
  facing = mat3(model) * normal;
  gl_Position = view * place;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
in vec3 world, local, facing;
uniform vec4 color, checker;
uniform vec3 eye, target, background;
uniform float fog;
out vec4 pixel;
void main() {
  vec3 n = normalize(facing), sight = normalize(eye - world), light = normalize(vec3(0.3, -0.4, 1.0));
  if (dot(n, sight) < 0.0) n = -n;
  vec3 base = color.rgb;
  if (checker.w > 0.0) {
    vec2 square = floor(local.xy / checker.w);
    if (mod(square.x + square.y, 2.0) > 0.5) base = checker.rgb;
  }
  float shine = pow(max(dot(n, normalize(light + sight)), 0.0), 40.0);
  vec3 lit = base * (0.5 + 0.2 * n.z + 0.45 * max(dot(n, light), 0.0)) + (checker.w == 0.0 ? 0.15 * shine : 0.0);
  if (checker.w < 0.0) lit = color.rgb;
  float hidden = smoothstep(0.35 * fog, fog, distance(world.xy, target.xy));
  pixel = vec4(mix(lit, background, hidden), color.a);
}`;

const BACKGROUND = [0.93, 0.945, 0.96];
const LIGHT = [0.3, -0.4, 1.0];

class Renderer {
  constructor(canvas, scene) {
    const gl = canvas.getContext("webgl2", { alpha: false, antialias: true, stencil: true });
    if (!gl) throw new Error("this browser does not offer WebGL 2");
    this.gl = gl;
    this.canvas = canvas;
    this.fog = 12 * Math.max(scene.size_m, 0.3);
    this.program = link(gl, VERTEX, FRAGMENT);
    this.places = {};
    for (const name of ["model", "view", "color", "checker", "eye", "target", "background", "fog"]) {
      this.places[name] = gl.getUniformLocation(this.program, name);
    }
    this.meshes = scene.meshes.map((m) => ({ vertices: unpack(m.vertices).values, faces: unpack(m.faces).values }));
    this.things = scene.geoms.map((geom) => this.upload(geom));
    const level = scene.geoms.filter((g) => g.shape === "plane" && g.body < 0 && Math.hypot(g.quat[1], g.quat[2]) < 0.01);
    this.ground = level.length ? Math.max(...level.map((g) => g.pos[2])) : null;
    this.extra = [];
    gl.enable(gl.DEPTH_TEST);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
    gl.clearColor(...BACKGROUND, 1);
  }

  // Sends the triangles of a geom to the GPU.
  upload(geom) {
    const gl = this.gl, triangles = shape(geom, this.meshes, 2 * this.fog), array = gl.createVertexArray();
    gl.bindVertexArray(array);
    for (const [name, values] of [["position", triangles.positions], ["normal", triangles.normals]]) {
      const place = gl.getAttribLocation(this.program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
      gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(values), gl.STATIC_DRAW);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, 3, gl.FLOAT, false, 0, 0);
    }
    const endless = geom.shape === "plane" && !(geom.size[0] && geom.size[1]);
    return { geom, array, count: triangles.positions.length / 3, pose: rigid(geom.pos, geom.quat), endless };
  }

  // Replaces the geoms that belong to one episode only.
  setExtra(geoms) {
    for (const thing of this.extra) this.gl.deleteVertexArray(thing.array);
    this.extra = geoms.map((geom) => this.upload(geom));
  }

  // Draws a frame. Poses: a matrix for each body. Marks: matrices of frames of axes. Camera: eye and target in m.
  draw(poses, marks, markSize, camera) {
    const gl = this.gl, places = this.places, canvas = this.canvas;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT | gl.STENCIL_BUFFER_BIT);
    gl.useProgram(this.program);
    const reach = Math.hypot(...subtract(camera.eye, camera.target));
    const lens = perspective(0.8, canvas.width / canvas.height, 0.02 * reach, 4 * this.fog + 4 * reach);
    gl.uniformMatrix4fv(places.view, false, multiply(lens, lookAt(camera.eye, camera.target)));
    gl.uniform3fv(places.eye, camera.eye);
    gl.uniform3fv(places.target, camera.target);
    gl.uniform3fv(places.background, BACKGROUND);
    gl.uniform1f(places.fog, this.fog + 2 * reach);
    const things = [...this.things, ...this.extra].map((thing) => [thing, this.place(thing, poses, camera.target)]);
    const solid = things.filter(([thing]) => thing.geom.rgba[3] >= 1), glass = things.filter(([thing]) => thing.geom.rgba[3] < 1);
    for (const [thing, pose] of solid) this.put(thing, pose, thing.geom.rgba);
    for (const mark of marks) this.putAxes(mark, markSize);
    if (this.ground !== null) this.drawShadows(solid);
    gl.enable(gl.BLEND);
    for (const [thing, pose] of glass) this.put(thing, pose, thing.geom.rgba);
    gl.disable(gl.BLEND);
  }

  place(thing, poses, target) {
    if (thing.geom.body >= 0) return multiply(poses[thing.geom.body], thing.pose);
    if (!thing.endless) return thing.pose;
    const pose = thing.pose.slice(), period = 2 * (thing.geom.square_m || 1), away = subtract(target, pose.slice(12, 15));
    for (const axis of [0, 1].filter((k) => !thing.geom.size[k])) {
      const along = pose.slice(4 * axis, 4 * axis + 3), shift = period * Math.round(dot(away, along) / period);
      for (const k of [0, 1, 2]) pose[12 + k] += shift * along[k];
    }
    return pose;
  }

  put(thing, pose, rgba, isShadow = false) {
    const gl = this.gl, geom = thing.geom;
    gl.uniformMatrix4fv(this.places.model, false, pose);
    gl.uniform4fv(this.places.color, rgba);
    gl.uniform4fv(this.places.checker, geom.checker ? [...geom.checker, geom.square_m] : [0, 0, 0, isShadow ? -1 : 0]);
    gl.bindVertexArray(thing.array);
    gl.drawArrays(gl.TRIANGLES, 0, thing.count);
  }

  putAxes(mark, size) {
    for (let axis = 0; axis < 3; axis++) {
      const half = [0.05, 0.05, 0.05].map((thin, k) => (k === axis ? size / 2 : thin * size)), pos = [0, 0, 0], rgba = [0.1, 0.1, 0.1, 1];
      pos[axis] = size / 2;
      rgba[axis] = 0.85;
      this.axes = this.axes || [];
      this.axes[axis] = this.axes[axis] || this.upload({ shape: "box", size: half, pos, quat: [1, 0, 0, 0], body: -1, rgba });
      this.put(this.axes[axis], multiply(mark, this.axes[axis].pose), rgba);
    }
  }

  // Presses what moves flat onto the ground along the light; the stencil darkens each pixel once.
  drawShadows(things) {
    const gl = this.gl, z = this.ground + 0.002;
    const flat = new Float32Array([1, 0, 0, 0, 0, 1, 0, 0, -LIGHT[0], -LIGHT[1], 0, 0, LIGHT[0] * z, LIGHT[1] * z, z, 1]);
    gl.enable(gl.BLEND);
    gl.enable(gl.STENCIL_TEST);
    gl.stencilFunc(gl.EQUAL, 0, 255);
    gl.stencilOp(gl.KEEP, gl.KEEP, gl.INCR);
    for (const [thing, pose] of things) if (thing.geom.body >= 0) this.put(thing, multiply(flat, pose), [0, 0, 0, 0.3], true);
    gl.disable(gl.STENCIL_TEST);
    gl.disable(gl.BLEND);
  }
}

function link(gl, vertex, fragment) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const part = gl.createShader(kind);
    gl.shaderSource(part, text);
    gl.compileShader(part);
    gl.attachShader(program, part);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
  return program;
}

// Matrices are column by column, as WebGL takes them.
function multiply(a, b) {
  const out = new Float32Array(16);
  for (let c = 0; c < 4; c++) {
    for (let r = 0; r < 4; r++) {
      let sum = 0;
      for (let k = 0; k < 4; k++) sum += a[4 * k + r] * b[4 * c + k];
      out[4 * c + r] = sum;
    }
  }
  return out;
}

function rigid(p, [w, x, y, z]) {
  return new Float32Array([
    1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y), 0,
    2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x), 0,
    2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y), 0,
    p[0], p[1], p[2], 1,
  ]);
}

function perspective(angle, aspect, near, far) {
  const f = 1 / Math.tan(angle / 2), depth = near - far;
  return new Float32Array([f / aspect, 0, 0, 0, 0, f, 0, 0, 0, 0, (near + far) / depth, -1, 0, 0, (2 * near * far) / depth, 0]);
}

function lookAt(eye, target) {
  const back = normalized(subtract(eye, target)), right = normalized(cross([0, 0, 1], back)), up = cross(back, right);
  return new Float32Array([
    right[0], up[0], back[0], 0, right[1], up[1], back[1], 0, right[2], up[2], back[2], 0,
    -dot(right, eye), -dot(up, eye), -dot(back, eye), 1,
  ]);
}
