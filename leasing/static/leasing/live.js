// Keeps an operator's page current. Without this file every page still works; it only stands
// still.
//
// The page is asked for again every two seconds and each [data-live] region is brought to what
// the answer says, node by node: what did not change is not touched, so focus, scroll, open
// details and what somebody types or ticks stay. Times count on between two answers, from the
// server's clock and never from the browser's.
"use strict";
(() => {
    const EVERY = 2000, SLOWEST = 30000, TIMEOUT = 10000, TOLERATED_AGE = 5;
    const find = (selector, within = document) => within.querySelector(selector);
    const all = (selector, within = document) => [...within.querySelectorAll(selector)];
    const main = find("#main");

    // --- Times. The words are those of leasing/humanize.py.

    const clock = { server: 0, at: 0 };
    let tickedAt = 0;
    const setClock = (iso, at) => Object.assign(clock, { server: Date.parse(iso), at });
    const now = () => clock.server + performance.now() - clock.at;

    function span(milliseconds) {
        const s = Math.floor(Math.abs(milliseconds) / 1000);
        const two = (large, name, small, smallName) => {
            const rest = Math.floor((s % large) / small);
            return `${Math.floor(s / large)} ${name}` + (rest ? ` ${rest} ${smallName}` : "");
        };
        if (s < 60) return `${s} s`;
        if (s < 3600) return two(60, "min", 1, "s");
        return s < 86400 ? two(3600, "h", 60, "min") : two(86400, "d", 3600, "h");
    }
    function ago(then) {
        const past = now() - then;
        if (past <= -1000) return `in ${span(past)}`;
        return past < 1000 ? "just now" : `${span(past)} ago`;
    }
    function until(then, ahead, past) {
        const left = then - now();
        const upwards = 1000 * Math.ceil(left / 1000);
        return left > 0 ? `${ahead} in ${span(upwards)}`.trim() : `${past} ${ago(then)}`;
    }

    function tick() {
        if (document.hidden || !clock.server) return;
        let hasPassed = false;
        for (const time of all("time[data-moment], time[data-deadline]", main)) {
            const then = Date.parse(time.dateTime), { deadline, moment, past } = time.dataset;
            if (deadline !== undefined && then > tickedAt && then <= now()) hasPassed = true;
            const words = moment ? span(now() - then)
                : deadline === undefined ? ago(then) : until(then, deadline, past);
            if (time.textContent !== words) time.textContent = words;
        }
        for (const bar of all("rect[data-until]", main)) {
            const share = (Date.parse(bar.dataset.until) - now()) / (1000 * bar.dataset.ttl);
            bar.setAttribute("width", `${Math.max(0, Math.min(100, 100 * share)).toFixed(1)}%`);
        }
        for (const words of all("[data-until]:not(rect)", main))
            words.hidden = Date.parse(words.dataset.until) <= now();
        // Whose deadline has passed has another sentence, which the server knows.
        if (hasPassed && tickedAt && state === "live") later(100);
        tickedAt = now();
        tellAge();
    }

    // --- One region becomes what the server says.

    const isBlank = (node) => node.nodeType === Node.TEXT_NODE && !node.data.trim();
    const keyOf = (node) => node.dataset?.key || node.id || "";
    const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName;
    const isTyped = (node) => /^(INPUT|TEXTAREA|SELECT)$/.test(node.nodeName);

    function syncAttributes(old, fresh) {
        for (const { name } of [...old.attributes]) {
            const isOpen = name === "open" && old.nodeName === "DETAILS";
            if (!fresh.hasAttribute(name) && !isOpen) old.removeAttribute(name);
        }
        for (const { name, value } of fresh.attributes) {
            const isOpen = name === "open" && old.nodeName === "DETAILS";
            if (old.getAttribute(name) !== value && !isOpen) old.setAttribute(name, value);
        }
    }
    function update(old, fresh) {
        if (old.nodeType !== Node.ELEMENT_NODE) {
            if (old.data !== fresh.data) old.data = fresh.data;
        } else if (!isTyped(old)) {
            syncAttributes(old, fresh);
            updateChildren(old, fresh);
        }
    }
    function updateChildren(old, fresh) {
        let wanted = [...fresh.childNodes];
        const keys = new Set(wanted.map(keyOf).filter(Boolean));
        if (keys.size) {
            // In a list only its items count; the white space between them would be in the way.
            wanted = wanted.filter((node) => !isBlank(node));
            [...old.childNodes].filter(isBlank).forEach((node) => node.remove());
        }
        const present = new Map([...old.childNodes].map((node) => [keyOf(node), node]));
        let next = old.firstChild;
        for (const node of wanted) {
            while (next && keyOf(next) && !keys.has(keyOf(next))) {
                const gone = next;
                next = next.nextSibling;
                gone.remove();
            }
            const key = keyOf(node);
            const match = key ? present.get(key) : next && !keyOf(next) ? next : null;
            if (match && isAlike(match, node)) {
                if (match === next) next = next.nextSibling;
                else old.insertBefore(match, next);
                update(match, node);
            } else {
                old.insertBefore(document.importNode(node, true), next);
            }
        }
        while (next) {
            const gone = next;
            next = next.nextSibling;
            gone.remove();
        }
    }

    // What a region says, apart from what ticks by itself and from tokens of forms.
    function fingerprint(region) {
        const copy = region.cloneNode(true);
        all("time", copy).forEach((time) => { time.textContent = ""; });
        all("rect[data-until]", copy).forEach((bar) => bar.removeAttribute("width"));
        all("input[type=hidden]", copy).forEach((input) => input.remove());
        return copy.innerHTML;
    }
    const prints = new Map();
    const regions = (within) => all("[data-live]", within);
    function swap(fresh) {
        document.title = fresh.title;
        for (const region of regions(main)) {
            const name = region.dataset.live;
            const other = find(`[data-live="${CSS.escape(name)}"]`, fresh);
            const print = other && fingerprint(other);
            if (!other || prints.get(name) === print) continue;
            prints.set(name, print);
            update(region, other);
        }
    }

    // --- Asking again.

    const toggle = find("[data-live-toggle]"), toast = find("[data-toast]");
    let state = "live", timer = 0, failures = 0, answeredAt = 0, tag = "";

    function show(newState) {
        state = newState;
        toggle.dataset.liveState = state;
        toggle.setAttribute("aria-pressed", String(state === "paused"));
        find("[data-live-word]", toggle).textContent =
            { live: "Live", paused: "Paused", stale: "No response", ended: "Stopped" }[state];
        if (state === "live" || state === "paused") toast.hidden = true;
    }
    function tellAge() {
        const age = performance.now() - answeredAt;
        if (state !== "stale" || age < 1000 * TOLERATED_AGE) return;
        say("The server does not respond. This page shows the state of", "");
        find("[data-toast-age]", toast).textContent = `${span(age)} ago.`;
    }
    function say(words, link) {
        const text = find("[data-toast-text]", toast), anchor = find("[data-toast-link]", toast);
        if (text.textContent !== words) text.textContent = words;
        find("[data-toast-age]", toast).textContent = "";
        anchor.hidden = !link;
        anchor.textContent = link;
        anchor.href = location.href;
        toast.hidden = false;
    }
    function end(words, link) {
        show("ended");
        say(words, link);
    }
    function later(delay) {
        clearTimeout(timer);
        const jitter = 0.85 + 0.3 * Math.random();
        if (state === "live" || state === "stale") timer = setTimeout(poll, delay * jitter);
    }

    function heard(askedAt) {
        answeredAt = performance.now();
        failures = 0;
        show("live");
        later(Math.max(EVERY, 3 * (answeredAt - askedAt)));
    }

    async function poll() {
        if (document.hidden || state === "paused" || state === "ended") return;
        const askedAt = performance.now();
        try {
            const response = await fetch(location.href, {
                headers: tag ? { "X-Live": "1", "If-None-Match": tag } : { "X-Live": "1" },
                redirect: "manual", cache: "no-store",
                credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT),
            });
            const { type, status } = response;
            if (state === "paused") return;
            if (type === "opaqueredirect" || status === 401)
                return end("You are signed out. Live updates have stopped.", "Sign in again");
            if (status === 403) return end("You no longer have access to this page.", "Reload");
            if (status === 404 || status === 410) return end("This no longer exists.", "");
            if (status === 304) return heard(askedAt);
            if (!response.ok) throw new Error(`status ${status}`);
            const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
            const moment = find("main[data-now]", fresh)?.dataset.now;
            if (!moment) throw new Error("not a page of ours");
            if (state === "paused") return;
            // The answer was made between asking and now; half way is the best guess.
            setClock(moment, (askedAt + performance.now()) / 2);
            tag = response.headers.get("ETag") ?? "";
            swap(fresh);
            tick();
            heard(askedAt);
        } catch {
            failures += 1;
            if (state === "live") show("stale");
            later(Math.min(SLOWEST, EVERY * 2 ** failures));
        }
    }

    // --- Start.

    if (!main?.dataset.now) return;
    const loadedAt = performance.getEntriesByType("navigation")[0]?.responseStart ?? 0;
    setClock(main.dataset.now, loadedAt);
    answeredAt = loadedAt;
    regions(main).forEach((region) => prints.set(region.dataset.live, fingerprint(region)));
    setInterval(tick, 1000);
    if (!("poll" in main.dataset)) return;
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
        if (state === "ended") return;
        show(state === "paused" ? "live" : "paused");
        if (state === "live") poll();
    });
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden) tick();
        clearTimeout(timer);
        if (!document.hidden) poll();
    });
    show("live");
    later(EVERY);
})();
