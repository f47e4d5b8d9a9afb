/*
 * The rules of tokens and restarts of package redlock, for spin.
 *
 * Servers vote for one client at a time and keep a counter of tokens. A client asks all
 * servers one after another, in any order, proposes a token with the request, and is
 * granted with that token if a quorum voted whose counters were below it. If they were
 * not it writes a larger token to the servers that voted, and needs a quorum of
 * acknowledgements, which count only where the vote stands.
 *
 * A server may restart at any moment, and then forgets its vote and its counter. It is
 * withheld until no client relies on a vote that it has forgotten: that is what the wait
 * for the longest TTL achieves. Then it gets the largest counter of a quorum of the other
 * servers, which are asked one after another, and votes again. Servers may restart in
 * between.
 *
 * A client may release its grant and keep the name taken: each server that has the vote
 * replaces it by a kept lock, one after another, before the client's validity ends. The
 * name is kept once a quorum has done so. No client renews a kept lock. So a server that
 * is admitted takes it over from the servers whose counters it gets.
 *
 * Checked: no two clients hold the name at once, tokens rise from grant to grant, and
 * there is no grant of a kept name.
 *
 * Each of these plants a mistake, which the check has to find:
 *   -DNOWAIT     a restarted server votes without the wait
 *   -DNORESTORE  a restarted server votes with the counter 0
 *   -DEARLY      the counters of the others are read before the wait
 *   -DFEW        the counters of too few others are read
 *   -DNOCOPY     a restarted server takes over no kept lock
 *   -DKEEPLATE   the servers keep the lock after the client's validity has ended
 */
#ifndef N
#define N 3		/* servers */
#endif
#define Q (N / 2 + 1)	/* a quorum */
#define CLIENTS 2
#define KEPT (CLIENTS + 1)	/* in place of a client's vote: the lock is kept */
#ifndef ROUNDS
#define ROUNDS 2	/* requests of each client */
#endif
#ifndef RESTARTS
#define RESTARTS 2
#endif
#ifdef FEW
#define OTHERS 1
#else
#define OTHERS Q	/* servers whose counters are read */
#endif

byte counter[N];
byte vote[N];		/* the client that has it, from 1; 0 is none; or KEPT */
byte voted = (1 << N) - 1;	/* bits: servers that are admitted */
byte forgot[CLIENTS + 1];	/* bits: servers that have forgotten a vote of the client's request */
byte given[CLIENTS + 1];	/* bits: servers that voted for the client's request */
byte holders = 0;
byte last = 0;		/* the token of the last grant */
byte restarts = 0;
bool kept = false;	/* a client has learned that the name is kept */

inline bigger(a, b) {
	if
	:: (b) > (a) -> a = b
	:: else
	fi
}

#define ask(k) \
		:: atomic { !(asked & (1 << k)) && n < Q -> \
			asked = asked | (1 << k); \
			if \
			:: (voted & (1 << k)) && vote[k] == 0 -> \
				vote[k] = me; \
				given[me] = given[me] | (1 << k); \
				n++; \
				if \
				:: counter[k] < token -> fresh++ \
				:: else \
				fi; \
				bigger(highest, counter[k]); \
				bigger(counter[k], token) \
			:: else		/* refused, withheld, or not reached */ \
			fi \
		}

#define readOther(k) \
		:: atomic { n < OTHERS && k != i && !(read & (1 << k)) && (voted & (1 << k)) -> \
			read = read | (1 << k); \
			n++; \
			if \
			:: vote[k] == KEPT -> taken = true \
			:: else \
			fi; \
			bigger(highest, counter[k]) \
		}

proctype client(byte me)
{
	byte i, asked, fresh, token, highest, known, acks, n, round;

	for (round : 1 .. ROUNDS) {
		token = known + 1;
		do
		ask(0)
		ask(1)
		ask(2)
#if N > 3
		ask(3)
		ask(4)
#endif
		:: asked == (1 << N) - 1 || n >= Q -> break	/* the others are not waited for */
		od;
		if
		:: fresh >= Q -> acks = Q
		:: fresh < Q && n >= Q ->
			atomic { acks = 0; token = highest + 1; i = 0 }
			do
			:: atomic {
				i < N ->
				if
				:: given[me] & (1 << i) ->
					if
					:: vote[i] == me -> acks++; bigger(counter[i], token)
					:: else
					fi
				:: else
				fi;
				i++
			}
			:: i == N -> break
			od
		:: else -> acks = 0
		fi;
		bigger(known, highest);
		if
		:: acks >= Q ->
			atomic {
				holders++;
				assert(holders == 1);
				assert(!kept);
				assert(token > last);
				last = token;
				bigger(known, token)
			};
			/* It holds the name, until it releases it or its validity ends. */
			holders--;
			if
			:: true ->
#ifdef KEEPLATE
				atomic { given[me] = 0; forgot[me] = 0 };
#endif
				atomic { i = 0; acks = 0 }
				do
				:: atomic {
					i < N ->
					if
					:: vote[i] == me -> vote[i] = KEPT; acks++
					:: else
					fi;
					i++
				}
				:: i == N -> break
				od;
				if
				:: acks >= Q -> kept = true
				:: else
				fi
			:: true
			fi
		:: else
		fi;
		/* The votes are released, or expire, one after another. */
		atomic { i = 0; fresh = 0; highest = 0; n = 0; asked = 0; token = 0; acks = 0 }
		do
		:: atomic {
			i < N ->
			if
			:: vote[i] == me -> vote[i] = 0
			:: else
			fi;
			i++
		}
		:: i == N -> break
		od;
		atomic { i = 0; given[me] = 0; forgot[me] = 0 }
	}
}

#define forget(c) \
		if \
		:: given[c] & (1 << i) -> forgot[c] = forgot[c] | (1 << i) \
		:: else \
		fi;

/* waited: no client relies on a vote that server i has forgotten. */
#define relies(c) (forgot[c] & (1 << i))
#define waited (!relies(1) && !relies(2))

proctype server(byte i)
{
	byte highest, j, read, n;
	bool taken;

	do
	:: atomic {
		restarts < RESTARTS ->
		restarts++;
		voted = voted & ~(1 << i);
		forget(1)
		forget(2)
		vote[i] = 0; counter[i] = 0; highest = 0; read = 0; n = 0; j = 0; taken = false
	   };
#if !defined(NOWAIT) && !defined(EARLY)
		waited;
#endif
#ifndef NORESTORE
		do
		:: n >= OTHERS -> break
		readOther(0)
		readOther(1)
		readOther(2)
#if N > 3
		readOther(3)
		readOther(4)
#endif
		od;
#endif
#ifdef EARLY
		waited;
#endif
		atomic {
			bigger(counter[i], highest);
#ifndef NOCOPY
			if
			:: taken -> vote[i] = KEPT
			:: else
			fi;
#endif
			voted = voted | (1 << i); highest = 0; read = 0; n = 0; taken = false
		}
	:: restarts >= RESTARTS -> break
	od;
}

init {
	byte i;
	atomic {
		for (i : 1 .. CLIENTS) { run client(i) }
		for (i : 0 .. N - 1) { run server(i) }
	}
}
