"use strict";
/* Draws the page's charts from the JSON in #data. What the reader chose lives in the address's fragment, so that a page that
   reloads itself, and a link to it, show the same. Names of tasks and runs are text from outside: textContent, or esc(). */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const many = data.runs.length > 1;
  const PALETTE = {  // Okabe and Ito's, told apart under every common colour blindness
    light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9"],
    dark: ["#56b4e9", "#f5903d", "#3ccfa0", "#e39bc6", "#f0e442", "#8ab6ff"],
  };
  const LABELS = { light: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#999999"],
                   dark: ["#4aa3df", "#e69f00", "#2dbd8d", "#d98cba", "#8fd0f5", "#8b919d"] };
  const FORMS = { cf: { dash: "5px,3px", symbol: "circle", name: "CF" }, mcf: { dash: "solid", symbol: "square", name: "MCF" } };
  const touch = matchMedia("(pointer: coarse)").matches;
  const $ = (id) => document.getElementById(id);
  const esc = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const state = { norm: "olmes", x: data.x, y: "accuracy", bands: true, off: new Set(), solo: null, bias: null, range: null };

  // ---- what was chosen, to and from the fragment
  function readHash() {
    const chosen = new URLSearchParams(location.hash.slice(1));
    state.norm = data.kinds.includes(chosen.get("norm")) ? chosen.get("norm") : "olmes";
    state.x = ["linear", "log"].includes(chosen.get("x")) ? chosen.get("x") : data.x;
    state.y = chosen.get("y") === "error" ? "error" : "accuracy";
    state.bands = chosen.get("bands") !== "off";
    state.off = new Set(chosen.getAll("off").filter((task) => data.tasks.includes(task)));
    state.solo = data.tasks.includes(chosen.get("solo")) ? chosen.get("solo") : null;
    state.bias = chosen.get("bias");
  }
  function writeHash() {
    const chosen = new URLSearchParams();
    if (state.norm !== "olmes") chosen.set("norm", state.norm);
    if (state.x !== data.x) chosen.set("x", state.x);
    if (state.y !== "accuracy") chosen.set("y", state.y);
    if (!state.bands) chosen.set("bands", "off");
    for (const task of state.off) chosen.append("off", task);
    if (state.solo) chosen.set("solo", state.solo);
    if (state.bias) chosen.set("bias", state.bias);
    history.replaceState(null, "", "#" + chosen);
  }
  function choose(change) {
    Object.assign(state, change);
    writeHash();
    update();
  }

  // ---- colours and common layout
  let printing = false;
  const dark = () => !printing && matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const runColour = (run) => PALETTE[dark() ? "dark" : "light"][run % 6];
  const colour = (run, form) => (many ? runColour(run) : ink(form));
  const faint = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const level = (value) => (value === null ? null : 100 * (state.y === "error" ? 1 - value : value));
  const kindOf = (curve) => (state.norm === curve.own ? "olmes" : state.norm);
  const signed = (value, digits = 1) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
  const short = (tokens) => {
    for (const [unit, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (tokens >= unit * 0.99995) return String(+(tokens / unit).toFixed(1)) + letter;
    return String(tokens);
  };
  function layout(extra = {}) {
    const axis = { gridcolor: ink("grid"), linecolor: ink("line"), zeroline: false, tickfont: { size: 11 }, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x unified", dragmode: touch ? false : "zoom",
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", size: 12, color: ink("soft") },
      margin: { l: 34, r: 12, t: 18, b: 30 }, hoverlabel: { bgcolor: ink("card"), bordercolor: ink("line"), font: { color: ink("ink"), size: 12 } },
      ...extra,
      xaxis: { ...axis, type: state.x, exponentformat: "B", showgrid: false, showline: true, ticks: "outside", ticklen: 3, tickcolor: ink("line"),
               nticks: 6, fixedrange: touch, ...(state.x === "log" ? { dtick: logTick() } : {}), ...extra.xaxis },
      yaxis: { ...axis, fixedrange: true, nticks: 6, ...extra.yaxis },
    };
  }
  function logTick() {
    const tokens = data.runs.flatMap((run) => Object.values(run.tasks).flatMap((curve) => curve.tokens)).filter((t) => t > 0);
    return Math.log10(Math.max(...tokens) / Math.min(...tokens)) > 2.8 ? 1 : "D2";
  }
  const config = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
  function draw(element, traces, extra) {
    Plotly.react(element, traces, layout(extra), config);
    const { width, height } = element._fullLayout;  // an element that has grown since, as when it is enlarged
    if (Math.abs(width - element.clientWidth) > 1 || Math.abs(height - element.clientHeight) > 1) Plotly.Plots.resize(element);
  }

  // ---- one task's curves: all runs, both forms, bands, floor, crossings, checkpoints
  function formTraces(curve, run, form) {
    const kind = kindOf(curve);
    const values = form === "cf" ? curve.cf[kind] : curve.mcf;
    const errors = (form === "cf" ? curve.cf_error[kind] : curve.mcf_error) || [];
    if (!values || values.every((value) => value === null)) return [];
    const keep = curve.tokens.map((t, i) => i).filter((i) => values[i] !== null && (state.x === "linear" || curve.tokens[i] > 0));
    const x = keep.map((i) => curve.tokens[i]), y = keep.map((i) => level(values[i]));
    const error = keep.map((i) => (errors[i] === undefined || errors[i] === null ? null : 100 * errors[i]));
    const found = [], own = colour(run, form), style = FORMS[form];
    if (state.bands && error.some((e) => e !== null)) {
      const up = y.map((v, i) => v + (error[i] || 0)), down = y.map((v, i) => v - (error[i] || 0));
      found.push({ x: [...x, ...x.slice().reverse()], y: [...up, ...down.reverse()], fill: "toself", fillcolor: faint(own, 0.16), mode: "lines",
                   line: { width: 0 }, hoverinfo: "skip" });
    }
    const name = many ? `${style.name} ${esc(data.runs[run].name)}` : style.name;
    found.push({
      x, y, name, mode: "lines+markers", line: { color: own, width: 1.9, dash: style.dash },
      marker: { symbol: style.symbol, size: 5, color: own, maxdisplayed: 16 }, customdata: error.map((e) => (e === null ? "" : ` ± ${e.toFixed(1)}`)),
      hovertemplate: `${name} %{y:.1f}%{customdata}<extra></extra>`,
    });
    return found;
  }
  function gapTrace(curve, run) {
    const cf = curve.cf[kindOf(curve)], errors = curve.gap_error[kindOf(curve)] || [];
    if (!cf) return [];
    const keep = curve.tokens.map((t, i) => i).filter((i) => cf[i] !== null && curve.mcf[i] !== null && (state.x === "linear" || curve.tokens[i] > 0));
    if (!keep.length) return [];
    return [{
      x: keep.map((i) => curve.tokens[i]), y: keep.map((i) => level(curve.mcf[i])), mode: "lines", line: { width: 0, color: "rgba(0,0,0,0)" },
      customdata: keep.map((i) => `${signed(100 * (curve.mcf[i] - cf[i]))}${errors[i] ? ` ± ${(100 * errors[i]).toFixed(1)}` : ""}` +
        (curve.steps ? ` · step ${curve.steps[i].toLocaleString("en")}` : "")),
      hovertemplate: `gap${state.y === "error" ? " in accuracy" : ""} %{customdata}<extra></extra>`, name: "gap",
    }];
  }
  const firstShown = (curve) => curve.tokens.find((t) => state.x === "linear" || t > 0);
  function crossingTraces(curve, run) {
    const crossing = curve.crossings[kindOf(curve)];
    if (!crossing || crossing.tokens === null) return [];
    const own = many ? runColour(run) : ink("ink"), found = [], last = curve.tokens[curve.tokens.length - 1];
    const { tokens } = crossing, lo = crossing.lo ?? (crossing.hi === null ? null : firstShown(curve)), hi = crossing.hi ?? (crossing.lo === null ? null : last);
    if (lo !== null)
      found.push({ x: [lo, hi, hi, lo], y: [0, 0, 1, 1], yaxis: "y2", fill: "toself", fillcolor: many ? faint(own, 0.13) : ink("shade"), mode: "lines", line: { width: 0 }, hoverinfo: "skip" });
    const sure = crossing.state === "tentative" ? "dot" : "solid";
    found.push({ x: [tokens, tokens], y: [0, 1], yaxis: "y2", mode: "lines+text", line: { color: own, width: 1.2, dash: sure }, hoverinfo: "skip",
                 text: ["", many ? "" : short(tokens)], textposition: tokens > last * 0.8 ? "top left" : "top right", textfont: { color: own, size: 11.5, weight: 600 }, cliponaxis: false });
    return found;
  }
  function checkpointTrace(run, curve) {
    const marks = data.runs[run].checkpoints.filter(([tokens]) => curve.tokens.includes(tokens) && (state.x === "linear" || tokens > 0));
    if (!marks.length) return [];
    return [{ x: marks.map((m) => m[0]), y: marks.map(() => 0.0), yaxis: "y2", mode: "markers", cliponaxis: false, name: "checkpoint",
              marker: { symbol: "triangle-up", size: 6, color: many ? runColour(run) : ink("soft") }, customdata: marks.map((m) => esc(m[1])),
              hovertemplate: "checkpoint %{customdata}<extra></extra>" }];
  }
  function floorShapes(curves) {
    const floors = [...new Set(curves.map((c) => c.floor).filter((f) => f !== null && f !== undefined))];
    return floors.map((floor) => ({ type: "line", xref: "paper", x0: 0, x1: 1, yref: "y", y0: level(floor), y1: level(floor), layer: "below",
                                    line: { color: ink("floor"), width: 1.3, dash: "dot" } }));
  }
  function drawCurves(element, curves) {  // curves: [[run, curve], …]
    const traces = curves.flatMap(([run, curve]) => [...crossingTraces(curve, run), ...formTraces(curve, run, "cf"), ...formTraces(curve, run, "mcf"),
                                                     ...gapTrace(curve, run), ...checkpointTrace(run, curve)]);
    draw(element, traces, {
      shapes: floorShapes(curves.map(([, curve]) => curve)), yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      xaxis: state.range ? { range: state.range, autorange: false } : { autorange: true },
    });
    if (element.dataset.listens) return;
    element.dataset.listens = "yes";
    element.on("plotly_relayout", (change) => {  // all charts share the token axis, and so its zoom
      if (change["xaxis.range[0]"] !== undefined) state.range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      else if (change["xaxis.autorange"] && state.range) state.range = null;
      else return;
      drawTasks(); drawDomains();
    });
    element.on("plotly_doubleclick", () => { if (state.range) { state.range = null; drawTasks(); drawDomains(); } });
  }
  const ofTask = (task) => data.runs.map((run, i) => [i, run.tasks[task]]).filter(([, curve]) => curve);
  const shown = () => data.tasks.filter((task) => (state.solo ? task === state.solo : !state.off.has(task)));

  function card(task, container) {
    const element = document.createElement("section"), head = document.createElement("div"), title = document.createElement("h3");
    element.className = "card" + (task === "average" ? " average" : "");
    element.dataset.task = task;
    title.textContent = task;
    const words = document.createElement("p"), plot = document.createElement("div");
    plot.className = "plot";
    plot.setAttribute("role", "img");
    head.append(title);
    element.append(head, words, plot);
    container.append(element);
    return element;
  }
  const STATES = { not_reached: "not yet", from_start: "ahead from the start", reverted: "was ahead, no longer", undecided: "undecided", tentative: "tentative", confirmed: "confirmed" };
  function between({ lo, hi }) {  // an end is open where the crossing may lie before the first evaluation, or be still to come
    if (lo === null) return hi === null ? "" : ` [≤ ${short(hi)}]`;
    return hi === null ? ` [≥ ${short(lo)}]` : ` [${short(lo)}, ${short(hi)}]`;
  }
  function brief(crossing) {  // [state, the rest]
    if (!crossing) return ["", "no verdict"];
    if (crossing.tokens === null) return [STATES[crossing.state] || crossing.state, ""];
    return [`${short(crossing.tokens)}${between(crossing)}`, `, ${STATES[crossing.state] || crossing.state}`];
  }
  function describeOne(words, curve, below) {
    const [bold, rest] = brief(curve.crossings.olmes), strong = document.createElement("span");
    strong.className = "state";
    strong.textContent = bold;
    words.replaceChildren(strong, rest, document.createElement("br"), below);
  }
  function describe(words, task) {
    words.textContent = "";
    for (const [run, curve] of ofTask(task)) {
      const [bold, rest] = brief(curve.crossings[kindOf(curve)]), line = document.createElement("span"), strong = document.createElement("span");
      strong.className = "state";
      strong.textContent = bold;
      if (many) {
        const name = document.createElement("span");
        name.textContent = data.runs[run].name + ": ";
        name.style.color = runColour(run);
        line.append(name);
      }
      line.append(strong, rest + (curve.cf[kindOf(curve)] ? "" : ` CF was not asked with ${state.norm}`));
      line.style.display = "block";
      words.append(line);
    }
    if (many) return;
    const [, curve] = ofTask(task)[0], by = kindOf(curve) === "olmes" ? curve.own : state.norm;
    words.append([by && `CF by ${by}`, curve.n && `${curve.n.toLocaleString("en")} questions`].filter(Boolean).join(" · "));
  }
  const cards = new Map();
  function drawTasks() {
    const visible = shown();
    $("tasks").classList.toggle("single", visible.length === 1);
    for (const [task, element] of cards) {
      element.hidden = !visible.includes(task);
      if (element.hidden) continue;
      describe(element.querySelector("p"), task);
      const plot = element.querySelector(".plot"), curves = ofTask(task);
      plot.setAttribute("aria-label", curves.map(([, c]) => (c.crossings[kindOf(c)] || { words: `${task}: no verdict` }).words).join("; "));
      drawCurves(plot, curves);
    }
  }

  // ---- the order of crossing
  function drawEmergence() {
    const tasks = data.tasks.filter((task) => ofTask(task).some(([, c]) => c.crossings[kindOf(c)]));
    if (!$("emergence") || !tasks.length) return;
    const first = (task) => Math.min(...ofTask(task).map(([, c]) => { const x = c.crossings[kindOf(c)]; return !x ? Infinity : x.tokens ?? (x.state === "from_start" ? 0 : Infinity); }));
    const order = tasks.map((task, i) => [first(task), i, task]).sort((a, b) => (b[0] === a[0] ? b[1] - a[1] : b[0] > a[0] ? 1 : -1)).map((row) => row[2]);
    const end = Math.max(...data.runs.flatMap((run) => Object.values(run.tasks).map((c) => c.tokens[c.tokens.length - 1])));
    const start = state.x === "log" ? Math.min(...data.runs.flatMap((run) => Object.values(run.tasks).flatMap((c) => c.tokens.filter((t) => t > 0)))) : 0;
    const traces = data.runs.flatMap((run, number) => {
      const rows = order.map((task, i) => [i, run.tasks[task]]).filter(([, c]) => c && c.crossings[kindOf(c)]);
      const own = many ? runColour(number) : ink("mcf"), spread = many ? ((data.runs.length - 1) / 2 - number) * (0.6 / data.runs.length) : 0;
      const crossings = rows.map(([, c]) => c.crossings[kindOf(c)]), y = rows.map(([i]) => i + spread);
      const span = (x, curve) => {  // an open end reaches to where evaluations begin or end
        if (x.tokens === null) { const at = x.state === "from_start" ? Math.max(curve.tokens[0], start) : curve.tokens[curve.tokens.length - 1]; return [at, at, at]; }
        const known = x.lo !== null || x.hi !== null;
        return [x.lo ?? (known ? Math.max(curve.tokens[0], start) : x.tokens), x.tokens, x.hi ?? (known ? curve.tokens[curve.tokens.length - 1] : x.tokens)];
      };
      const spans = rows.map(([, c], i) => span(crossings[i], c));
      const symbol = (x) => (x.tokens === null ? (x.state === "from_start" ? "triangle-left-open" : "triangle-right-open") : x.state === "confirmed" ? "diamond" : "diamond-open");
      const label = (x) => (x.tokens === null ? STATES[x.state] || x.state : short(x.tokens) + (x.state === "confirmed" ? "" : ` ${STATES[x.state] || x.state}`));
      return [{
        x: spans.map((s) => s[1]), y, mode: "markers", name: esc(run.name), customdata: crossings.map((x) => esc(x.words)), hovertemplate: "%{customdata}<extra></extra>",
        marker: { size: 10, color: own, line: { color: own, width: 1.8 }, symbol: crossings.map(symbol) },
        error_x: { type: "data", symmetric: false, color: own, thickness: 1.8, width: 4, array: spans.map((s) => s[2] - s[1]), arrayminus: spans.map((s) => s[1] - s[0]) },
      }, {
        x: spans.map((s) => s[2]), y, mode: "text", text: crossings.map((x) => "   " + label(x)), textposition: "middle right", textfont: { color: many ? own : ink("soft"), size: 11.5 }, hoverinfo: "skip", cliponaxis: false,
      }];
    });
    const height = 70 + order.length * Math.max(26, 21 * data.runs.length);
    $("emergence").style.height = height + "px";
    draw($("emergence"), traces, {
      hovermode: "closest", height, margin: { l: 20, r: 132, t: 8, b: 34 }, xaxis: { range: state.x === "log" ? [Math.log10(start) - 0.03, Math.log10(end) + 0.01] : [0, end * 1.01], showgrid: true, fixedrange: true, title: { text: "tokens", standoff: 6 } },
      yaxis: { tickmode: "array", tickvals: order.map((_, i) => i), ticktext: order.map(esc), range: [-0.6, order.length - 0.4], showgrid: true, tickfont: { size: 12.5, color: ink("ink") }, nticks: 0 },
    });
  }

  // ---- MMLU: domains as curves, subjects as pairs of dots
  const domainCards = new Map();
  function drawDomains() {
    for (const [name, element] of domainCards) {
      const curves = data.runs.map((run, i) => [i, run.domains[name]]).filter(([, c]) => c).map(([i, c]) => [i, { ...c, own: state.norm }])  // only OLMES's normalization is known of a domain
       ;
      const words = element.querySelector("p");
      if (many) words.textContent = "";
      else describeOne(words, curves[0][1], `${(curves[0][1].n || 0).toLocaleString("en")} questions; the mean over subjects`);
      drawCurves(element.querySelector(".plot"), curves);
    }
  }
  function drawSubjects() {
    for (const element of document.querySelectorAll("#subjects .plot")) {
      const domain = element.dataset.domain, run = data.runs.find((r) => Object.keys(r.subjects).length);
      const found = Object.values(run.subjects)[0], lead = (i) => found.mcf[i] - found.cf[i];
      const rows = found.names.map((_, i) => i).filter((i) => found.domains[i] === domain && found.cf[i] !== null && found.mcf[i] !== null).sort((a, b) => lead(a) - lead(b));
      const y = rows.map((_, i) => i), number = data.runs.indexOf(run), height = 60 + 19 * rows.length;
      const sticks = rows.map((i, place) => ({ type: "line", x0: level(found.cf[i]), x1: level(found.mcf[i]), y0: place, y1: place, layer: "below", line: { color: ink("floor"), width: 1.6 } }));
      const dots = ["cf", "mcf"].map((form) => ({
        x: rows.map((i) => level(found[form][i])), y, mode: "markers", name: FORMS[form].name, marker: { symbol: FORMS[form].symbol, size: 8.5, color: form === "cf" ? ink("card") : colour(number, form), line: { color: colour(number, form), width: 2 } },
        customdata: rows.map((i) => `${esc(found.names[i])}: CF ${level(found.cf[i]).toFixed(1)}, MCF ${level(found.mcf[i]).toFixed(1)}, ${found.n[i]} question${found.n[i] === 1 ? "" : "s"}`), hovertemplate: "%{customdata}<extra></extra>",
      }));
      element.style.height = height + "px";
      draw(element, dots, { hovermode: "closest", height, shapes: sticks, margin: { l: 20, r: 12, t: 4, b: 30 }, xaxis: { type: "linear", dtick: undefined, fixedrange: true, showgrid: true, nticks: 5 },
                            yaxis: { tickmode: "array", tickvals: y, ticktext: rows.map((i) => esc(found.names[i].replace(/_/g, " ").replace(/^high school /, "HS "))), range: [-0.7, rows.length - 0.3], showgrid: false, tickfont: { size: 11 } } });
    }
  }

  // ---- bias and cost
  const positive = (x, ys) => { const keep = x.map((_, i) => i).filter((i) => state.x === "linear" || x[i] > 0); return [keep.map((i) => x[i]), ys.map((y) => keep.map((i) => y[i]))]; };
  function massTicks(mass) {
    const least = Math.min(...mass.filter((m) => m > 0)), all = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];
    const ticks = all.filter((t) => (least > 0.004 ? t >= 0.01 : Number.isInteger(Math.round(1e9 * Math.log10(t)) / 1e9)));
    return { tickvals: ticks, ticktext: ticks.map(String) };
  }
  function drawBias() {
    const select = $("bias-task");
    if (!select) return;
    const [run, task] = JSON.parse(select.value), bias = data.runs[run].bias[task], shades = LABELS[dark() ? "dark" : "light"];
    const axis = { fixedrange: true, autorange: true }, legend = { showlegend: true, legend: { orientation: "h", y: -0.2, x: 0, font: { size: 11.5 } }, margin: { l: 38, r: 12, t: 8, b: 58 } };
    const known = bias.shares.map((s, i) => i).filter((i) => bias.shares[i] && (state.x === "linear" || bias.tokens[i] > 0));
    const labels = (bias.gold || []).map((_, label) => ({
      x: known.map((i) => bias.tokens[i]), y: known.map((i) => 100 * (bias.shares[i][label] ?? 0)), name: "ABCDEFGHIJ"[label], stackgroup: "labels", mode: "lines", line: { color: shades[label % 6], width: 1 }, fillcolor: faint(shades[label % 6], 0.75),
      hovertemplate: `${"ABCDEFGHIJ"[label]} %{y:.1f} %, right in ${(100 * bias.gold[label]).toFixed(1)} %<extra></extra>`,
    }));
    let sum = 0;
    const bounds = (bias.gold || []).slice(0, -1).map((share) => { sum += 100 * share; return { type: "line", xref: "paper", x0: 0, x1: 1, y0: sum, y1: sum, line: { color: ink("ink"), width: 1.4, dash: "dot" } }; });
    draw($("bias-labels"), labels, { ...legend, shapes: bounds, xaxis: axis, yaxis: { range: [0, 100] } });
    const [x, [mass]] = positive(bias.tokens, [bias.mass]);
    draw($("bias-mass"), [{ x, y: mass, mode: "lines+markers", line: { color: ink("mcf"), width: 1.9 }, marker: { size: 5, symbol: "square", maxdisplayed: 16 }, hovertemplate: "label mass %{y:.3g}<extra></extra>" }],
         { ...legend, showlegend: false, xaxis: axis, yaxis: { type: "log", autorange: true, tickmode: "array", ...massTicks(mass) } });
    const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "2px,6px"];
    const taus = Object.keys(bias.tau).map((kind, i) => {
      const [at, [tau]] = positive(bias.tokens, [bias.tau[kind]]), own = kind === bias.own;
      return { x: at, y: tau, mode: "lines", name: kind + (own ? " (OLMES)" : ""), line: { color: shades[i % 6], width: own ? 3 : 1.6, dash: dashes[i % 7] }, hovertemplate: `${kind} %{y:.2f}<extra></extra>` };
    });
    draw($("bias-length"), taus, { ...legend, legend: { x: 1.02, y: 1, font: { size: 11 } }, margin: { l: 38, r: 12, t: 8, b: 30 }, shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: ink("floor"), width: 1.2, dash: "dot" } }], xaxis: axis, yaxis: { autorange: true } });
  }
  function drawCost() {
    if (!$("cost-seconds")) return;
    const line = (key, scale, unit) => data.runs.map((run, i) => {
      const [x, [y]] = positive(run.cost.tokens, [run.cost[key]]);
      return { x, y: y.map((v) => (v === null ? null : v * scale)), name: esc(run.name), mode: "lines+markers", line: { width: 1.6, color: many ? runColour(i) : ink("cf") }, marker: { size: 5, maxdisplayed: 30 },
               hovertemplate: (many ? esc(run.name) + " " : "") + `%{y:.3g} ${unit}<extra></extra>` };
    });
    const extra = { xaxis: { fixedrange: true, autorange: true }, yaxis: { rangemode: "tozero", autorange: true } };
    draw($("cost-seconds"), line("seconds", 1, "s"), extra);
    draw($("cost-overhead"), line("overhead", 100, "%"), extra);
  }

  // ---- controls
  function press(group, value) {
    for (const button of document.querySelectorAll(`[data-group="${group}"]`)) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
  function update() {
    $("norm").value = state.norm;
    press("x", state.x);
    press("y", state.y);
    $("bands").setAttribute("aria-pressed", String(state.bands));
    for (const chip of document.querySelectorAll("#chips button[data-task]")) chip.setAttribute("aria-pressed", String(shown().includes(chip.dataset.task)));
    for (const button of document.querySelectorAll(".solo")) {
      button.textContent = state.solo ? "all tasks" : "enlarge";
      button.setAttribute("aria-label", state.solo ? "show all tasks" : `enlarge ${button.dataset.task}`);
    }
    drawTasks(); drawEmergence(); drawDomains(); drawSubjects(); drawBias(); drawCost();
  }
  function build() {
    for (const task of data.tasks) {
      const element = card(task, $("tasks")), chip = document.createElement("button"), solo = document.createElement("button");
      cards.set(task, element);
      chip.type = solo.type = "button";
      chip.textContent = task;
      chip.dataset.task = solo.dataset.task = task;
      chip.addEventListener("click", () => {
        const off = new Set(state.solo ? data.tasks.filter((t) => t !== state.solo) : state.off);
        if (!off.delete(task)) off.add(task);
        choose({ off, solo: null });
      });
      $("chips").append(chip);
      solo.className = "solo";
      solo.addEventListener("click", () => choose({ solo: state.solo ? null : task }));
      element.firstChild.append(solo);
    }
    for (const name of new Set(data.runs.flatMap((run) => Object.keys(run.domains)))) domainCards.set(name, card(name, $("domains")));
    $("norm").addEventListener("change", (event) => choose({ norm: event.target.value }));
    for (const button of document.querySelectorAll("[data-group]")) button.addEventListener("click", () => { state.range = null; choose({ [button.dataset.group]: button.dataset.value }); });
    $("bands").addEventListener("click", () => choose({ bands: !state.bands }));
    $("all").addEventListener("click", () => { state.range = null; choose({ off: new Set(), solo: null }); });
    const select = $("bias-task");
    if (select) {
      if ([...select.options].some((option) => option.value === state.bias)) select.value = state.bias;
      select.addEventListener("change", () => choose({ bias: select.value }));
    }
    if (many) document.querySelectorAll("[data-run]").forEach((element) => element.style.setProperty("--run", runColour(+element.dataset.run)));
  }
  function refresh() {  // a watched page loads itself anew, but not under the reader's hand
    const seconds = +document.body.dataset.refresh;
    if (!seconds) return;
    let touched = 0;
    for (const kind of ["pointermove", "keydown", "scroll"]) addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
    setInterval(() => { if (Date.now() - touched > 4000) location.reload(); }, 1000 * seconds);
  }
  readHash();
  build();
  update();
  refresh();
  addEventListener("hashchange", () => { readHash(); update(); });
  const recolour = () => { if (many) document.querySelectorAll("[data-run]").forEach((e) => e.style.setProperty("--run", runColour(+e.dataset.run))); update(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  const onPaper = (on) => { printing = on; recolour(); for (const plot of document.querySelectorAll(".js-plotly-plot")) if (plot.offsetParent) Plotly.Plots.resize(plot); };
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  document.body.dataset.ready = "yes";
})();
