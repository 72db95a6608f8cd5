"""The keys of a namesrv.conf that RocketMQ 5.5.0 knows. A table only.

`DEFAULTS`: those that GET_NAMESRV_CONFIG shows, with 5.5.0's values but for addresses and paths; most have no effect
here, they are kept and shown. `KNOWN_UNSET`: those it takes and never shows.
"""

from __future__ import annotations

DEFAULTS: dict[str, str] = dict(
    pair.split("=", 1)
    for pair in """
    bindAddress=127.0.0.1 clientRequestThreadPoolNums=8 clientRequestThreadPoolQueueCapacity=50000 clusterTest=false
    configBlackList=configBlackList;configStorePath;kvConfigPath configStorePath= defaultThreadPoolNums=16
    defaultThreadPoolQueueCapacity=10000 deleteTopicWithBrokerRegistration=false enableAllTopicList=true
    enableControllerInNamesrv=false enableShutdownGracefully=false enableTopicList=true kvConfigPath= listenPort=9876
    needWaitForService=false notifyMinBrokerIdChanged=false orderMessageEnable=false productEnvName=center
    returnOrderTopicConfigToBroker=true rocketmqHome= scanNotActiveBrokerInterval=5000 serverAsyncSemaphoreValue=64
    serverCallbackExecutorThreads=0 serverChannelMaxIdleTimeSeconds=120 serverNettyWorkerGroupEnable=true
    serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3
    serverSocketBacklog=1024 serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8
    shutdownWaitTimeSeconds=30 supportActingMaster=false unRegisterBrokerQueueCapacity=3000
    useEpollNativeSelector=false waitSecondsForService=45 writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
    """.split()
)

# Of a controller in the NameServer's process (enableControllerInNamesrv); some of them are the NameServer's too.
CONTROLLER_KEYS = frozenset(
    """
    configBlackList configStorePath controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId
    controllerRequestThreadPoolQueueCapacity controllerStorePath controllerThreadPoolNums controllerType
    electMasterMaxRetryCount enableElectUncleanMaster isProcessReadEvent jRaftControllerRPCAddr jRaftElectionTimeoutMs
    jRaftGroupId jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs mappedFileSize
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
    metricsPromExporterHost metricsPromExporterPort notifyBrokerRoleChanged processReadEvent
    scanInactiveMasterInterval scanNotActiveBrokerInterval
    """.split()
)

KNOWN_UNSET = CONTROLLER_KEYS | frozenset(
    """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
    clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
    clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
    enableReconnectForGoAway isScanAvailableNameSrv maxReconnectIntervalTimeSeconds scanAvailableNameSrv
    socksProxyConfig useTLS
    """.split()
)
