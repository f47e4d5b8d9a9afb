"use strict";
const words = {
  en: { store: "Store", token: "Access token", signin: "Sign in", overview: "Overview", held: "Held", waiting: "Waiting", grantsps: "Grants/s",
    lossesps: "Losses/s", longest: "Longest wait", locks: "Locks", prefix: "Names that begin with", sort: "Sort by", name: "Name", mode: "Mode",
    holder: "Holder", reason: "Reason", age: "Age", ttl: "TTL left", holders: "Holders", fencing: "Token", note: "Note",
    queue: "Queue", timeline: "Timeline", time: "Time", event: "Event", client: "Client", break: "Break", cancel: "Cancel", back: "Back", next: "Next",
    breakhead: "Take the lock away", typename: "Type the name of the lock to confirm", why: "Reason, for the log",
    seen: "What this server has seen since it started, at most ten times a second. It does not see what begins and ends between two readings. Losses are those of locks that clients hold through this server.",
    free: "free", unknown: "unknown", another: "another client", more: "more", none: "no waiters", of: "of", reading: "reading the store",
    noanswer: "does not answer", live: "live", offline: "no connection to the server; trying again", denied: "access is denied",
    deadlock: "Possible deadlock", waits: "{0} waits for {1}, held by {2}", what: "{0}, token {1}, holds {2}.", lang: "中文",
    now: "The store takes the lock away at once and notifies the holder. Until the holder has noticed, two clients may work. Only a fencing token protects the resource.",
    notify: "The store notifies the holder. It keeps the lock until it has ended. A stopped holder does not notice.",
    nobreak: "This store cannot take a lock away.", kinds: {} },
  zh: { store: "存储", token: "访问令牌", signin: "登录", overview: "概览", held: "持有", waiting: "等待", grantsps: "授予/秒", lossesps: "丢失/秒",
    longest: "最长等待", locks: "锁", prefix: "名称前缀", sort: "排序", name: "名称", mode: "模式", holder: "持有者", reason: "原因", age: "时长",
    ttl: "剩余 TTL", holders: "持有者", fencing: "令牌", note: "备注", queue: "队列", timeline: "时间线", time: "时间", event: "事件",
    client: "客户端", break: "强制释放", cancel: "取消", back: "上一页", next: "下一页", breakhead: "强制释放锁", typename: "输入锁的名称以确认",
    why: "原因（写入日志）", seen: "本服务器启动以来所见，每秒最多读取十次，两次读取之间开始并结束的变化看不到。丢失仅指客户端通过本服务器持有的锁。",
    free: "空闲", unknown: "未知", another: "其他客户端", more: "更多", none: "无人等待", of: "共", reading: "正在读取存储", noanswer: "无响应", live: "实时",
    offline: "与服务器的连接已断开，正在重试", denied: "无权访问", deadlock: "可能的死锁", waits: "{0} 等待 {1}，持有者 {2}",
    what: "{0}（令牌 {1}）持有 {2}。", lang: "English",
    now: "存储立即收回锁并通知持有者。在持有者得知之前，可能有两个客户端同时工作。只有 fencing 令牌能保护资源。",
    notify: "存储通知持有者，持有者结束之前仍保有锁。已暂停的持有者收不到通知。", nobreak: "此存储不能强制释放锁。",
    kinds: { held: "持有", free: "空闲", granted: "授予", released: "释放", waiting: "等待", left: "离开队列", noted: "备注变化", broken: "记录损坏", lost: "丢失", taken: "强制释放" } },
};
const $ = id => document.getElementById(id);
let language = localStorage.getItem("language") || (navigator.language.startsWith("zh") ? "zh" : "en");
let bearer = sessionStorage.getItem("bearer") || "";
let breaks = {}, rows = {}, shift = 0, reader = null, target = null, last = null;
const t = (key, ...args) => (words[language][key] ?? key).replace(/\{(\d)\}/g, (_, i) => args[i]);

// Names, hosts and reasons come from other clients: what is invisible or turns the text around is written out.
const clean = s => String(s).replace(/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, c => "\\u{" + c.codePointAt(0).toString(16) + "}").replace(/(\p{M}{4})\p{M}+/gu, "$1");
function element(tag, text, attributes = {}) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = clean(text);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}
const process = p => (p.pid || p.host ? [p.host, p.pid || ""].filter(Boolean).join(":") : t("another")) + (p.instance ? ` (${p.instance})` : "");
const now = () => Date.now() + shift; // by the server's clock
function duration(seconds) {
  const s = Math.max(Math.floor(seconds), 0), pad = n => String(n).padStart(2, "0");
  if (s < 60) return s + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + pad(s % 60) + "s";
  return s < 86400 ? Math.floor(s / 3600) + "h" + pad(Math.floor(s / 60) % 60) + "m" : Math.floor(s / 86400) + "d" + pad(Math.floor(s / 3600) % 24) + "h";
}
// A cell with a time counts by itself; see the interval at the end.
function clock(since, ends) {
  const e = element("td");
  e.dataset.since = since || "";
  e.dataset.ends = ends || "";
  count(e);
  return e;
}
function count(e) {
  const { since, ends } = e.dataset;
  e.textContent = since ? duration((now() - Date.parse(since)) / 1000) : ends ? duration((Date.parse(ends) - now()) / 1000) : "–";
}
const state = () => new URLSearchParams(location.hash.slice(1));
function go(changes) {
  const s = state();
  for (const [k, v] of Object.entries(changes)) v ? s.set(k, v) : s.delete(k);
  return "#" + s;
}
async function api(path, options = {}) {
  const headers = { ...options.headers };
  if (bearer) headers.Authorization = "Bearer " + bearer;
  const r = await fetch(path, { ...options, headers });
  if (r.status === 401) $("signin").hidden = false;
  if (!r.ok) {
    const body = await r.json().catch(() => ({}));
    throw Object.assign(new Error(body.error?.message || r.statusText), { status: r.status });
  }
  return r;
}

function say(key) { const text = t(key); if ($("status").textContent !== text) $("status").textContent = text; }

async function follow() {
  reader?.abort();
  const mine = reader = new AbortController();
  rows = {};
  const s = state(), name = s.get("name");
  $("list").hidden = Boolean(name);
  $("lock").hidden = !name;
  $("prefix").value = s.get("prefix") || "";
  $("sort").value = s.get("sort") || "name";
  const q = new URLSearchParams({ store: s.get("store") || $("store").value });
  for (const k of ["name", "prefix", "sort", "offset"]) if (s.get(k)) q.set(k, s.get(k));
  while (!mine.signal.aborted) {
    try {
      if (!$("store").options.length) await loadStores();
      q.set("store", state().get("store") || $("store").value);
      $("store").value = q.get("store");
      rows = {};
      const r = await api("v1/events?" + q, { signal: mine.signal });
      $("signin").hidden = true;
      say("live");
      const stream = r.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await stream.read();
        if (done) break;
        text += value;
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) draw(last = JSON.parse(text.slice(6, end)));
      }
    } catch (e) {
      if (mine.signal.aborted) return;
      say(e.status === 401 || e.status === 403 ? "denied" : "offline");
      if (e.status === 401) return;
    }
    if (!mine.signal.aborted) { if ($("signin").hidden && $("status").textContent === t("live")) say("offline"); await new Promise(f => setTimeout(f, 1000)); }
  }
}
async function loadStores() {
  const list = await (await api("v1/stores")).json();
  $("store").replaceChildren(...list.stores.map(s => element("option", s.name, { value: s.name })));
  for (const s of list.stores) breaks[s.name] = s.break;
}

function draw(u) {
  shift = Date.parse(u.at) - Date.now();
  $("stores").replaceChildren(...u.stores.map(s => {
    const tr = element("tr"), first = element("td");
    first.append(element("a", s.name, { href: go({ store: s.name, name: "", offset: "" }) }));
    if (s.error) first.append(element("div", t("noanswer") + ": " + s.error, { class: "bad" }));
    else if (!s.read) first.append(element("div", t("reading"), { class: "dim" }));
    tr.append(first, ...[s.held, s.waiters, s.grants_per_second, s.losses_per_second,
      s.longest_wait_seconds === null ? "–" : duration(s.longest_wait_seconds)].map(x => element("td", x)));
    return tr;
  }));
  const found = u.stores.flatMap(s => (s.deadlocks || []).map(cycle => cycle.map(w => t("waits", process(w.waiter), "“" + w.name + "”", process(w.holder))).join("; ")));
  const text = clean(found.map(f => t("deadlock") + ": " + f).join("\n"));
  if ($("deadlocks").textContent !== text) $("deadlocks").textContent = text; // an alert is read out when it changes
  u.lock ? drawLock(u) : drawRows(u);
}
function drawRows(u) {
  for (const [name, r] of Object.entries(u.rows || {})) rows[name] = { r, tr: drawRow(name, r, name in rows || !Object.keys(rows).length ? "" : "new") };
  const order = u.order || [], body = $("rows");
  order.forEach((name, i) => { if (body.children[i] !== rows[name].tr) body.insertBefore(rows[name].tr, body.children[i] || null); });
  while (body.children.length > order.length) body.lastChild.remove();
  for (const name of Object.keys(rows)) if (!rows[name].tr.isConnected) delete rows[name];
  const offset = Math.min(Number(state().get("offset") || 0), Math.max(Math.ceil(u.total / 100) - 1, 0) * 100);
  $("range").textContent = order.length ? `${offset + 1}–${offset + order.length} ${t("of")} ${u.total}` : "0";
  $("back").disabled = offset === 0;
  $("next").disabled = offset + order.length >= u.total;
  $("back").onclick = () => { location.hash = go({ offset: offset > 100 ? offset - 100 : "" }); };
  $("next").onclick = () => { location.hash = go({ offset: offset + 100 }); };
}
function drawRow(name, r, kind) {
  const tr = element("tr", undefined, { class: kind }), first = element("td");
  first.append(element("a", name, { href: go({ name }) }));
  if (r.deadlock) first.append(element("div", t("deadlock"), { class: "bad" }));
  if (r.error) first.append(element("div", r.error, { class: "bad" }));
  const holder = r.holders ? process(r.first) + (r.holders > 1 ? ` +${r.holders - 1} ${t("more")}` : "") : t("free");
  tr.append(first, element("td", r.mode), element("td", holder), element("td", [r.reason, r.note].filter(Boolean).join(" · ")),
    clock(r.since), clock("", r.ends), element("td", r.waiters));
  return tr;
}
function drawLock(u) {
  const lock = u.lock, at = Date.parse(u.at);
  $("lock-head").textContent = clean(lock.name) + (lock.holders.length ? "" : " · " + t("free"));
  const body = $("holders"), focused = body.contains(document.activeElement) && document.activeElement.dataset.token;
  body.replaceChildren(...lock.holders.map(h => {
    const tr = element("tr"), last = element("td"), button = element("button", t("break"), { class: "danger", type: "button", "data-token": h.token });
    button.onclick = () => ask(lock.name, h);
    last.append(button);
    tr.append(...[process(h), h.reason, h.token, h.mode].map(x => element("td", x)), clock(h.since),
      clock("", h.ttl_seconds === null ? "" : new Date(at + h.ttl_seconds * 1000).toISOString()), element("td", h.note), last);
    return tr;
  }));
  if (focused) body.querySelector(`[data-token="${focused}"]`)?.focus();
  $("queue").replaceChildren(...lock.waiters.map(w => element("li", [process(w), w.reason, w.mode, w.since ? duration(w.age_seconds) : "", w.note].filter(Boolean).join(" · "))));
  if (!lock.waiters.length) $("queue").append(element("li", t("none"), { class: "dim" }));
  const events = u.events || [];
  $("events").replaceChildren(...events.toReversed().map(e => {
    const who = e.holder || e.waiter, tr = element("tr");
    tr.append(...[new Date(e.time).toLocaleTimeString(), words[language].kinds[e.event] || e.event, who ? process(who) + (who.reason ? " · " + who.reason : "") : "", e.error || who?.note || ""].map(x => element("td", x)));
    return tr;
  }));
  drawTimeline(events, at);
}
// One line for each client: grey while it waits, blue while it holds, red where a lock was lost or broken.
function drawTimeline(events, end) {
  const svg = $("timeline"), make = (tag, attributes, text = "") => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    e.textContent = clean(text);
    return e;
  };
  if (!events.length) { svg.style.height = 0; return svg.replaceChildren(); }
  const begin = Date.parse(events[0].time), width = svg.clientWidth || 600, left = Math.min(180, width / 3);
  const x = time => left + (width - left - 4) * (time - begin) / Math.max(end - begin, 1);
  const lanes = new Map(), open = {}, shapes = [];
  const lane = who => { const k = process(who); if (!lanes.has(k)) lanes.set(k, lanes.size); return lanes.get(k); };
  const close = (key, time) => { const o = open[key]; if (o) { shapes.push([o.kind, x(o.time), x(time), o.lane]); delete open[key]; } };
  for (const e of events) {
    const time = Date.parse(e.time), who = e.holder || e.waiter;
    if (!who) { shapes.push(["lost", x(time), x(time) + 3, 0]); continue; }
    if (e.event === "granted") close("w" + who.id, time);
    if (["held", "granted", "waiting"].includes(e.event)) open[(e.waiter ? "w" : "h") + who.id] = { kind: e.event, time, lane: lane(who) };
    if (e.event === "released") close("h" + who.id, time);
    if (e.event === "left") close("w" + who.id, time);
  }
  for (const key of Object.keys(open)) close(key, end);
  const most = 20, names = [...lanes].slice(0, most);
  svg.style.height = names.length * 18 + 4 + "px";
  svg.replaceChildren(...names.map(([k, i]) => make("text", { x: 0, y: i * 18 + 13 }, k.trim().slice(0, 26))),
    ...shapes.filter(s => s[3] < most).map(([kind, a, b, i]) => make("rect", { class: kind, x: a, y: i * 18 + (kind === "waiting" ? 7 : 3), width: Math.max(b - a, 1), height: kind === "waiting" ? 4 : 12 })));
}

function ask(name, holder) {
  target = { name, token: holder.token, store: $("store").value };
  const kind = breaks[target.store];
  $("break-what").textContent = clean(t("what", process(holder), holder.token, "“" + name + "”"));
  $("break-how").textContent = t(kind === "none" ? "nobreak" : kind || "now");
  $("break-name").value = $("break-reason").value = $("break-error").textContent = "";
  confirmable();
  $("break").showModal();
}
function confirmable() { $("break-do").disabled = $("break-name").value !== target?.name || !$("break-reason").value.trim() || breaks[target.store] === "none"; }
for (const id of ["break-name", "break-reason"]) $(id).oninput = confirmable;
$("break-not").onclick = () => $("break").close();
$("break").querySelector("form").onsubmit = async e => {
  e.preventDefault();
  $("break-do").disabled = true;
  try {
    await api("v1/break?" + new URLSearchParams({ store: target.store }), { method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ name: target.name, token: target.token, reason: $("break-reason").value }) });
    $("break").close();
    $("lock-head").focus();
  } catch (error) {
    $("break-error").textContent = clean(error.message);
  }
  confirmable();
};
$("signin").querySelector("form").onsubmit = e => {
  e.preventDefault();
  sessionStorage.setItem("bearer", bearer = $("bearer").value.trim());
  $("bearer").value = "";
  follow();
};
function translate() {
  document.documentElement.lang = language;
  for (const e of document.querySelectorAll("[data-t]")) e.textContent = t(e.dataset.t);
  $("language").textContent = t("lang");
  if (last) { rows = {}; $("rows").replaceChildren(); }
}
$("language").onclick = () => {
  localStorage.setItem("language", language = language === "en" ? "zh" : "en");
  translate();
  follow();
};
let typing;
$("prefix").oninput = () => { clearTimeout(typing); typing = setTimeout(() => { location.hash = go({ prefix: $("prefix").value, offset: "" }); }, 250); };
$("filter").onsubmit = e => e.preventDefault();
$("sort").onchange = () => { location.hash = go({ sort: $("sort").value, offset: "" }); };
$("store").onchange = () => { location.hash = go({ store: $("store").value, name: "", offset: "" }); };
addEventListener("hashchange", () => { follow(); if (state().get("name")) $("lock-head").focus(); });
setInterval(() => document.querySelectorAll("td[data-since], td[data-ends]").forEach(count), 1000);
translate();
follow();
