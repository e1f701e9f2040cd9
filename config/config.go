// Package config holds every setting of kvrelay in one struct, reads it from
// the environment and from flags of the same names, and checks it as a whole.
//
// A setting X is the variable KVRELAY_X or the flag --x (lower case, dashes);
// a flag wins over its variable, and an empty variable counts as not set.
// All problems are reported at once, as [Problems].
package config

import "time"

// Values of ENGINE.
const (
	EngineAuto       = "auto"
	EngineVLLM       = "vllm"
	EngineSGLang     = "sglang"
	EngineOpenEngine = "openengine"
	EngineStatic     = "static"
)

// Values of SINK.
const (
	SinkNATS      = "nats"
	SinkJetStream = "jetstream"
	SinkStdout    = "stdout"
)

// Values of PROFILE.
const (
	ProfileDynamo       = "dynamo"
	ProfileDynamoSingle = "dynamo-single"
	ProfileJSON         = "json"
)

// Values of MEMBERSHIP.
const (
	MembershipOff        = "off"
	MembershipFile       = "file"
	MembershipEtcd       = "etcd"
	MembershipKubernetes = "kubernetes"
)

// Values of REQUEST_PLANE.
const (
	PlaneTCP  = "tcp"
	PlaneNATS = "nats"
)

// Values of LOST.
const (
	LostClear = "clear"
	LostKeep  = "keep"
	LostExit  = "exit"
)

// Values of DUPLICATES.
const (
	DuplicatesAuto     = "auto"
	DuplicatesCount    = "count"
	DuplicatesPresence = "presence"
)

// Values of EAGLE.
const (
	EagleAuto = "auto"
	EagleOn   = "on"
	EagleOff  = "off"
)

// Off switches ADMIN_ADDR off.
const Off = "off"

// Config is the whole table of settings. Tags: env is the name behind KVRELAY_,
// default the default as text ($NAME: that variable's value), shown what the
// table says where the default is found out later, oneof the values allowed (any case, kept in
// lower case), min and max the range allowed, secret: never printed, url: credentials
// in it are never printed, addr: nor what stands in front of an @, fileof: the file that holds that secret, verbatim: white
// space around it counts (as in a secret), doc the one-line meaning.
type Config struct {
	// Engine says how the engine's event endpoints are found. auto is static
	// when ENDPOINTS is set, else discovery. Conflicts: static without
	// ENDPOINTS; another kind with them.
	Engine string `env:"ENGINE" default:"auto" oneof:"auto vllm sglang openengine static" doc:"how the engine's event endpoints are found: auto, vllm, sglang, openengine, static. auto: static when ENDPOINTS is set, else what DISCOVERY_URL answers to"`
	// DiscoveryURL is grpc, grpcs, http or https and host:port. Empty: the
	// usual ports of this host are tried. Conflicts with ENGINE=static; ENDPOINTS win.
	DiscoveryURL URL `env:"DISCOVERY_URL" shown:"grpc://127.0.0.1:50051, http://127.0.0.1:8000, :30000" url:"true" doc:"grpc://, grpcs://, http:// or https:// host:port of the engine, asked for its event endpoints"`
	// DiscoveryToken is sent as a bearer token: printable ASCII. Empty: none.
	DiscoveryToken     Secret `env:"DISCOVERY_TOKEN" secret:"true" doc:"bearer token for DISCOVERY_URL"`
	DiscoveryTokenFile string `env:"DISCOVERY_TOKEN_FILE" fileof:"DISCOVERY_TOKEN" doc:"file that holds DISCOVERY_TOKEN"`
	// Endpoints are the engine's PUB sockets. As written; Sources gives them per rank.
	Endpoints Endpoints `env:"ENDPOINTS" addr:"true" doc:"static: the engine's PUB sockets, comma separated: tcp://host:port, ipc://path, or listen:tcp://host:port for engines whose PUB connects. One per rank; one entry with RANKS > 1 means port + rank"`
	// ReplayEndpoints are the engine's replay ROUTER sockets. Empty: what
	// discovery says; static: running without replay, which is warned about.
	ReplayEndpoints ReplayEndpoints `env:"REPLAY_ENDPOINTS" addr:"true" doc:"static: the engine's replay ROUTER sockets, same shape; also overrides what discovery says. none switches replay off"`
	// Ranks is a count. Not set and several ENDPOINTS: their number. With
	// discovery RANKS and FIRST_RANK choose, where either is set, among the
	// engine's ranks.
	Ranks int `env:"RANKS" default:"1" min:"1" max:"65536" doc:"data-parallel ranks on this host; with discovery, unless given: all that the engine has"`
	// FirstRank with RANKS stays below 65536. Ports count by rank, not from here.
	FirstRank int `env:"FIRST_RANK" default:"0" min:"0" max:"65535" doc:"number of the first data-parallel rank on this host"`
	// Topic is matched as a prefix. Empty: what discovery says, else everything.
	Topic string `env:"TOPIC" verbatim:"true" doc:"topic prefix to subscribe to; empty: what discovery says, else everything"`
	// TopicExact drops messages whose topic is longer than TOPIC; without TOPIC
	// or one that discovery says, all that have a topic.
	TopicExact bool `env:"TOPIC_EXACT" default:"false" doc:"drop messages whose topic is not exactly TOPIC"`
	// BlockSize is in tokens. 0: discovered, else learned from the first
	// main-attention store.
	BlockSize int `env:"BLOCK_SIZE" default:"0" min:"0" max:"1048576" doc:"tokens per block; 0: discovered, else learned from the first main-attention store"`
	// RewriteLoopback matters with discovery only.
	RewriteLoopback bool `env:"REWRITE_LOOPBACK" default:"false" doc:"dial the discovery host where the engine advertises a loopback address"`
	// WorkerID: see Worker for what is used when it is not set.
	WorkerID Optional[uint64] `env:"WORKER_ID" shown:"derived" doc:"id of the worker in router events (unsigned, 64 bit). Default: with MEMBERSHIP=kubernetes Dynamo's own id, else a stable 53-bit hash of namespace, host name and engine address"`
	Eagle    string           `env:"EAGLE" default:"auto" oneof:"auto on off" doc:"token windows of EAGLE engines: auto (when token pairs are seen), on, off"`
	// ImageTokenID equal to VideoTokenID is as if neither were set.
	ImageTokenID Optional[uint32] `env:"IMAGE_TOKEN_ID" doc:"token id that stands for an image in routers' prompts; not set: hashes of images are appended"`
	VideoTokenID Optional[uint32] `env:"VIDEO_TOKEN_ID" doc:"token id that stands for a video in routers' prompts"`

	// Sink: stdout writes JSON lines and takes no NATS_ setting.
	Sink string `env:"SINK" default:"nats" oneof:"nats jetstream stdout" doc:"where router events go: nats, jetstream, stdout"`
	// NATSURL: empty runs a server inside kvrelay, which takes no credentials.
	NATSURL URLs `env:"NATS_URL" url:"true" shown:"embedded server" doc:"NATS servers, comma separated. Empty: the relay runs a server of its own on 127.0.0.1:4222 (a free port, printed, if taken); tail and query look there"`
	// At most one way to log in: creds file, nkey file, user, or token; also
	// when one of them is in NATS_URL.
	NATSCredsFile    string `env:"NATS_CREDS_FILE" doc:"NATS credentials file (JWT and seed)"`
	NATSNkeyFile     string `env:"NATS_NKEY_FILE" doc:"file that holds an NKey seed"`
	NATSUser         string `env:"NATS_USER" doc:"NATS user"`
	NATSPassword     Secret `env:"NATS_PASSWORD" secret:"true" doc:"password of NATS_USER"`
	NATSPasswordFile string `env:"NATS_PASSWORD_FILE" fileof:"NATS_PASSWORD" doc:"file that holds NATS_PASSWORD"`
	NATSToken        Secret `env:"NATS_TOKEN" secret:"true" doc:"NATS token"`
	NATSTokenFile    string `env:"NATS_TOKEN_FILE" fileof:"NATS_TOKEN" doc:"file that holds NATS_TOKEN"`
	// NATSTLSCert and NATSTLSKey come together.
	NATSTLSCA   string `env:"NATS_TLS_CA" doc:"PEM file of the authorities that sign the NATS servers' certificates; not set: the system's"`
	NATSTLSCert string `env:"NATS_TLS_CERT" doc:"PEM file of the client certificate"`
	NATSTLSKey  string `env:"NATS_TLS_KEY" doc:"PEM file of the client certificate's key"`
	Profile     string `env:"PROFILE" default:"dynamo" oneof:"dynamo dynamo-single json" doc:"form of the messages: dynamo (Dynamo 1.4 and later), dynamo-single (Dynamo up to 1.3), json (routers without Dynamo code)"`
	// Namespace, Component and EndpointName are percent-encoded in subjects.
	Namespace    string `env:"NAMESPACE" default:"dynamo" doc:"namespace in the profile's subject"`
	Component    string `env:"COMPONENT" default:"backend" doc:"component in the profile's subject"`
	EndpointName string `env:"ENDPOINT_NAME" default:"generate" doc:"endpoint in the profile's subject"`
	// Subject: empty is the profile's own. See CheckSubject for what is allowed.
	Subject string `env:"SUBJECT" shown:"the profile's" doc:"overrides the subject: a template with {namespace} {component} {endpoint} {worker_id} {dp_rank}; with SINK=jetstream it must contain the last two"`
	// Stream matters with SINK=jetstream only.
	Stream string `env:"STREAM" default:"KVRELAY" doc:"JetStream stream"`
	// StreamCreate false: a missing stream is waited for.
	StreamCreate bool `env:"STREAM_CREATE" default:"true" doc:"create the JetStream stream when it is absent; it is never changed or deleted"`

	// Membership needs SINK=nats, PROFILE=dynamo and no SUBJECT: Dynamo's
	// routers listen on the profile's subject alone.
	Membership string `env:"MEMBERSHIP" default:"off" oneof:"off file etcd kubernetes" doc:"put the event source on record for Dynamo routers: off, file, etcd, kubernetes"`
	// RegisterWorker needs MEMBERSHIP.
	RegisterWorker bool   `env:"REGISTER_WORKER" default:"false" doc:"put the worker on record too, where no Dynamo process registered the engine"`
	MembershipPath string `env:"MEMBERSHIP_PATH" default:"$DYN_FILE_KV" doc:"folder of the records with MEMBERSHIP=file"`
	// EtcdEndpoints is needed with MEMBERSHIP=etcd.
	EtcdEndpoints    URLs   `env:"ETCD_ENDPOINTS" default:"$ETCD_ENDPOINTS" url:"true" doc:"etcd servers with MEMBERSHIP=etcd, comma separated"`
	EtcdUser         string `env:"ETCD_USER" doc:"etcd user"`
	EtcdPassword     Secret `env:"ETCD_PASSWORD" secret:"true" doc:"password of ETCD_USER"`
	EtcdPasswordFile string `env:"ETCD_PASSWORD_FILE" fileof:"ETCD_PASSWORD" doc:"file that holds ETCD_PASSWORD"`
	EtcdTLSCA        string `env:"ETCD_TLS_CA" doc:"PEM file of the authorities that sign etcd's certificates; not set: the system's"`
	EtcdTLSCert      string `env:"ETCD_TLS_CERT" doc:"PEM file of the client certificate for etcd"`
	EtcdTLSKey       string `env:"ETCD_TLS_KEY" doc:"PEM file of that certificate's key"`
	// PodName, PodNamespace and PodUID are needed with MEMBERSHIP=kubernetes;
	// Dynamo's own processes are given the same variables, by the downward API.
	PodName      string `env:"POD_NAME" default:"$POD_NAME" doc:"name of the pod, with MEMBERSHIP=kubernetes"`
	PodNamespace string `env:"POD_NAMESPACE" default:"$POD_NAMESPACE" doc:"Kubernetes namespace of the pod, with MEMBERSHIP=kubernetes"`
	PodUID       string `env:"POD_UID" default:"$POD_UID" doc:"uid of the pod, with MEMBERSHIP=kubernetes"`
	// WorkerContainer is needed where Dynamo runs with DYN_KUBE_DISCOVERY_MODE=container.
	WorkerContainer string `env:"WORKER_CONTAINER" doc:"the engine's container, with MEMBERSHIP=kubernetes and Dynamo's container mode; empty: pod mode"`
	// RequestPlane is the routers' DYN_REQUEST_PLANE. Empty: PlaneTCP.
	RequestPlane string `env:"REQUEST_PLANE" default:"$DYN_REQUEST_PLANE" shown:"$DYN_REQUEST_PLANE, else tcp" doc:"how Dynamo routers ask for recovery (with MEMBERSHIP): tcp, nats; must be the routers' DYN_REQUEST_PLANE"`
	// RecoveryAddr is host:port; port 0 is a free one. Empty: the address
	// that routers reach this host or pod at.
	RecoveryAddr string `env:"RECOVERY_ADDR" addr:"true" shown:"host's or pod's address, free port" doc:"host:port where Dynamo routers ask for recovery (with MEMBERSHIP); must be reachable from them"`

	// Lost says what follows when history is lost for good.
	Lost       string `env:"LOST" default:"clear" oneof:"clear keep exit" doc:"what follows lost history: clear (publish cleared and begin anew), keep (go on, mark the rank suspect), exit (code 3)"`
	Duplicates string `env:"DUPLICATES" default:"auto" oneof:"auto count presence" doc:"how several copies of a block are counted: auto, count, presence"`
	// HoldBytes reached: the newest held batches are dropped and replayed again.
	HoldBytes Size `env:"HOLD_BYTES" default:"64MiB" min:"1" doc:"bytes of live batches held during replays, whole process; beyond it the newest are dropped and replayed"`
	// DeadAfter is also how long refusals of a replay endpoint count as a wait.
	DeadAfter time.Duration `env:"DEAD_AFTER" default:"30s" min:"1ms" max:"24h" doc:"an engine unreachable this long is published as cleared"`
	// MaxFrameBytes exceeded: the connection is closed and dialled anew.
	MaxFrameBytes Size `env:"MAX_FRAME_BYTES" default:"64MiB" min:"64" max:"2GiB" doc:"largest ZMQ frame accepted"`
	// OutBytes reached: live batches are discarded and replayed later.
	OutBytes Size `env:"OUT_BYTES" default:"64MiB" min:"1" doc:"bytes of router events not yet confirmed by NATS, whole process; beyond it the engine's replay buffer keeps them"`
	// ReplayIdle without a frame: the replay's fate is unknown, and it is asked again.
	ReplayIdle        time.Duration `env:"REPLAY_IDLE" default:"1s" min:"1ms" max:"24h" doc:"a replay that brings nothing for this long is asked again"`
	ReplayAttempts    int           `env:"REPLAY_ATTEMPTS" default:"8" min:"1" max:"1000000" doc:"replay attempts without progress before history counts as lost"`
	ReplayConcurrency int           `env:"REPLAY_CONCURRENCY" default:"8" min:"1" max:"65536" doc:"replays at once, whole process"`
	// Heartbeat must be shorter than PeerTimeout.
	Heartbeat   time.Duration `env:"HEARTBEAT" default:"2s" min:"1ms" max:"24h" doc:"interval of ZMTP heartbeats, and the first silence after which the engine is asked for missed batches"`
	PeerTimeout time.Duration `env:"PEER_TIMEOUT" default:"10s" min:"1ms" max:"24h" doc:"a peer silent this long, heartbeats included, is dead; longer than HEARTBEAT"`
	// RecentEvents and RecentBytes: whichever is reached first. Older events
	// are had by snapshot only.
	RecentEvents int  `env:"RECENT_EVENTS" default:"16384" min:"1" max:"1073741824" doc:"router events kept per rank for consumers that missed some"`
	RecentBytes  Size `env:"RECENT_BYTES" default:"16MiB" min:"1" doc:"bytes of router events kept per rank for consumers that missed some"`
	ClearOnExit  bool `env:"CLEAR_ON_EXIT" default:"false" doc:"publish cleared on SIGTERM: where the engine goes with the sidecar (pods: true)"`
	// AdminAddr is host:port or off; port 0 is a free one, said in the log.
	AdminAddr string `env:"ADMIN_ADDR" addr:"true" default:"127.0.0.1:9558" doc:"address of /metrics, /healthz, /readyz, /status and the page; off: none"`
	LogLevel  string `env:"LOG_LEVEL" default:"info" oneof:"debug info warn error" doc:"least level that is logged: debug, info, warn, error"`
	LogFormat string `env:"LOG_FORMAT" default:"auto" oneof:"auto text json" doc:"auto, text, json. auto: coloured text on a terminal, JSON otherwise"`

	// origins says where each setting came from, by name; default when absent.
	origins map[string]Origin
}
